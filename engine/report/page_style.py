"""The style sheet of the report: light and dark by the reader's own setting, and fit to print. Text alone."""

from __future__ import annotations

STYLE = """
:root{color-scheme:light dark;--paper:#fbfaf7;--sheet:#fff;--ink:#1f2421;--soft:#5c665f;--faint:#8b948d;--line:#e3e2da;
--leaf:#2f7d4f;--leafy:#e4f1e7;--clay:#b4512f;--clayey:#f9e8e1;--amber:#94700f;--ambery:#f7efd6;--sky:#2c6a94;--band:#f3f2ec;
--code:#f6f5f0}
@media (prefers-color-scheme:dark){:root{--paper:#141816;--sheet:#1b201d;--ink:#e6e9e4;--soft:#a5aea7;--faint:#78827b;
--line:#2e3531;--leaf:#74c793;--leafy:#1f3a2a;--clay:#ef9471;--clayey:#43261b;--amber:#e0bd5c;--ambery:#3b3218;--sky:#86bfe6;--band:#202622;
--code:#171b19}}
*{box-sizing:border-box}
html{scroll-behavior:smooth}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 ui-sans-serif,system-ui,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif;-webkit-font-smoothing:antialiased;font-variant-numeric:tabular-nums}
main,header,footer{max-width:72rem;margin:0 auto;padding:0 1.5rem}
header{padding-top:3.5rem}
.eyebrow{color:var(--soft);font-size:.82rem;letter-spacing:.09em;text-transform:uppercase;margin:0}
h1{font-size:2.5rem;line-height:1.15;letter-spacing:-.02em;margin:.3rem 0 1.6rem;font-weight:650}
h2{font-size:1.3rem;letter-spacing:-.01em;margin:0 0 .35rem;font-weight:640}
h3{font-size:1rem;margin:1.8rem 0 .5rem;font-weight:620}
p.lead{color:var(--soft);margin:.1rem 0 1.1rem;max-width:48rem}
.hero{display:flex;flex-wrap:wrap;gap:1.2rem 3rem;align-items:flex-end;border-top:3px solid var(--leaf);padding:1.5rem 0 1.4rem}
.hero .big{font-size:4.4rem;line-height:1;font-weight:680;letter-spacing:-.045em;color:var(--leaf)}
.hero.undecided{border-color:var(--amber)}.hero.undecided .big{color:var(--amber)}
.hero .what{flex:1 1 20rem;min-width:0}
.hero .what b{display:block;font-size:1.15rem;overflow-wrap:anywhere}
.hero .what span{color:var(--soft)}
dl.facts{display:flex;flex-wrap:wrap;gap:1px;background:var(--line);border:1px solid var(--line);border-radius:10px;
overflow:hidden;margin:0}
dl.facts div{background:var(--sheet);padding:.7rem .95rem;flex:1 1 15rem}
dt{color:var(--soft);font-size:.78rem}
dd{margin:0;overflow-wrap:anywhere}
nav{margin:1.4rem auto 0;display:flex;flex-wrap:wrap;gap:.3rem 1.3rem;font-size:.92rem}
a{color:var(--sky);text-decoration:none}a:hover{text-decoration:underline}
section{margin:3.2rem 0 0;scroll-margin-top:1rem}
.card{background:var(--sheet);border:1px solid var(--line);border-radius:10px;padding:1rem 1.1rem;overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.9rem}
th{color:var(--soft);font-weight:500;font-size:.78rem;text-align:left;padding:.3rem .8rem .45rem 0;
border-bottom:1px solid var(--line);white-space:nowrap}
td{padding:.42rem .8rem .42rem 0;border-bottom:1px solid var(--line);vertical-align:top;overflow-wrap:anywhere}
tr:last-child td{border-bottom:0}
th:last-child,td:last-child{padding-right:0}
.n{text-align:right}
.n,.s{white-space:nowrap;overflow-wrap:normal}
th.n{text-align:right}
.tree{font-size:.86rem}
.tree td{border:0;padding-top:0;padding-bottom:0;line-height:1.5rem;white-space:nowrap}
.tree .name{max-width:23rem;overflow:hidden;text-overflow:ellipsis}
.tree .why{white-space:nowrap;max-width:8.5rem;overflow:hidden;text-overflow:ellipsis;color:var(--soft)}
.tree tr.leads td{background:var(--leafy)}
.tree tr.leads td:first-child{box-shadow:inset 3px 0 var(--leaf);padding-left:.6rem}
.tree td:first-child,.tree th:first-child{padding-left:.6rem}
.strokes{font-family:ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace;white-space:pre;color:var(--faint)}
.tree .why[colspan]{max-width:27rem}
.ideas th:nth-child(1){width:34%}.ideas th:nth-child(2){width:13%}.ideas th:nth-child(3){width:5%}
.ideas th:nth-child(4){width:8%}.ideas th:nth-child(5){width:15%}.ideas th:nth-child(6){width:18%}
.k{font-weight:620}
.soft{color:var(--soft)}.faint{color:var(--faint)}.good{color:var(--leaf)}.bad{color:var(--clay)}.warn{color:var(--amber)}
.tag{display:inline-block;border-radius:99px;padding:0 .6rem;font-size:.78rem;line-height:1.35rem;background:var(--band);
color:var(--soft);white-space:nowrap}
.tag.good{background:var(--leafy);color:var(--leaf)}.tag.bad{background:var(--clayey);color:var(--clay)}
.tag.warn{background:var(--ambery);color:var(--amber)}
.bar{display:inline-block;height:.5rem;border-radius:2px;background:var(--faint);opacity:.55;vertical-align:middle;min-width:2px}
.bar.good{background:var(--leaf);opacity:.8}
svg{display:block;width:100%;height:auto}
svg text{font-size:12px;fill:var(--soft);font-family:inherit}
svg .axis{fill:var(--faint)}svg .label{fill:var(--leaf);font-weight:650;font-size:13px}svg .roofname{fill:var(--sky)}
svg .band{fill:var(--band)}svg .grid{stroke:var(--line)}svg .unit{stroke:var(--faint);stroke-dasharray:4 4}
svg .best{fill:none;stroke:var(--leaf);stroke-width:2.2;stroke-linejoin:round}
svg .roof{stroke:var(--sky);stroke-width:2.2}
svg .sound{fill:var(--soft)}svg .screened{fill:var(--sheet);stroke:var(--soft);stroke-width:1.5}
svg .leads{fill:var(--leaf);stroke:var(--sheet);stroke-width:2}
svg .lost{fill:none;stroke:var(--clay);stroke-width:1.5;opacity:.8}
pre{margin:0;background:var(--code);border:1px solid var(--line);border-radius:10px;padding:1rem 1.1rem;overflow-x:auto;
font:13px/1.5 ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace;tab-size:4}
code{font:.88em ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace}
pre .k,pre .kt,pre .kr,pre .kd,pre .kn,pre .ow{color:var(--sky);font-weight:500}
pre .c,pre .c1,pre .cm,pre .ch,pre .cs,pre .sd{color:var(--faint);font-style:italic}
pre .cp,pre .cpf,pre .nd{color:var(--amber)}
pre .s,pre .s1,pre .s2,pre .sa,pre .se,pre .m,pre .mi,pre .mf,pre .mh,pre .mb{color:var(--clay)}
pre .nf,pre .nc,pre .fm{color:var(--leaf)}
.run{display:grid;gap:.6rem}
.run div{display:flex;flex-wrap:wrap;gap:.2rem 1rem;align-items:baseline}
.run code{background:var(--code);border:1px solid var(--line);border-radius:6px;padding:.25rem .6rem;overflow-wrap:anywhere}
.legend{color:var(--soft);font-size:.85rem;margin:.5rem 0 0}
footer{color:var(--faint);font-size:.85rem;padding-top:3rem;padding-bottom:3rem}
@media print{body{background:#fff}nav{display:none}section{break-inside:avoid-page}pre{white-space:pre-wrap}}
@media (max-width:640px){table{min-width:36rem}.hero .big{font-size:3.2rem}h1{font-size:1.9rem}}
"""
