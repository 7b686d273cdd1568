"""The widgets of a session. Each shows one thing, takes reactives and posts messages.

Every widget that shows a session has ``state: reactive[SessionState | None]`` (compared by identity), set by the screen. No
widget submits commands or knows where the state comes from.

=====================  =================================================================================================
widget (module)        reactives beyond ``state`` · methods · messages
=====================  =================================================================================================
KernelTree             ``selected``, ``marked``, ``folded``, ``pattern`` (filter), ``sort``, ``start`` · ``reveal(kernel)``,
(kernel_tree)          ``visible_kernels`` · ``Selected(kernel)``, ``Opened(kernel)`` (Enter, double click)
IdeaList               ``round`` (``None``: the open one, or the last), ``highlighted``, ``order`` (ids listed first) ·
(idea_list)            ``ideas`` (ids as listed) · ``Highlighted(idea)``, ``Chosen(idea)`` (Enter, double click)
DetailTabs             ``kernel``, ``other`` (diff against it; "" = the parent), ``progress``, ``tab`` · ``show(tab)``
(detail_tabs)
Charts (charts)        ``selected`` · two plots side by side, or one above the other
SessionHeader          ``note`` ("replay", "following"), ``stopped``, ``deadline`` (epoch seconds of the auto-approval),
(bars)                 ``now``, ``telemetry``
StageStrip             ``progress`` (work key → latest message), ``seconds`` (work key → elapsed)
(bars)
TransportBar           ``position``, ``length``, ``playing``, ``speed``, ``ticks`` (positions of rounds) ·
(bars)                 ``SeekRequested(position)``, ``PlayToggled()``, ``SpeedChanged(speed)``
LogView (panes)        ``show(entries)`` after a seek, ``push(entries)`` adds
SessionTable           no ``state`` · ``show(summaries)``, ``sessions``, ``highlighted``: the list of the home screen
(session_table)
Preview (preview)      no ``state`` · ``show(title, lines, state)``: what is highlighted on the home screen
NoteList (panes)
UsageView (panes)
LinesView (lines)      ``lines``: a scrolling page of prepared lines (``viewmodel.cells.Line``), selectable
=====================  =================================================================================================

Under a theme without these colours, widgets use the defaults of ``tui.theme``.
"""
