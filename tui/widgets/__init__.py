"""The widgets of a session. Each shows one thing, is fed by reactives and answers with messages.

Every widget that shows a session has ``state: reactive[SessionState | None]`` (compared by identity), set by the screen. None
of them submits anything or knows where the state comes from.

=====================  =================================================================================================
widget (module)        reactives beyond ``state`` · methods · messages
=====================  =================================================================================================
KernelTree             ``selected``, ``marked``, ``folded``, ``pattern`` (filter), ``sort`` · ``reveal(kernel)``,
(kernel_tree)          ``visible_kernels`` · ``Selected(kernel)``, ``Opened(kernel)`` (Enter, double click)
IdeaList               ``round`` (``None``: the open one, or the last), ``highlighted``, ``order`` (ids to be listed first) ·
(idea_list)            ``ideas`` (ids as listed) · ``Highlighted(idea)``, ``Chosen(idea)`` (Enter, double click)
DetailTabs             ``kernel``, ``other`` (diff against it; "" = the parent), ``progress``, ``tab`` · ``show(tab)``
(detail_tabs)
Charts (charts)        ``selected`` · two plots side by side, or one above the other
SessionHeader          ``note`` ("replay", "watching"), ``stopped``, ``deadline`` (epoch seconds at which the policy decides),
(bars)                 ``now``, ``telemetry``
StageStrip             ``progress`` (work key → latest message)
(bars)
TransportBar           ``position``, ``length``, ``playing``, ``speed``, ``ticks`` (positions of rounds) ·
(bars)                 ``SeekRequested(position)``, ``PlayToggled()``, ``SpeedChanged(speed)``
LogView (panes)        ``show(entries)`` after a seek, ``push(entries)`` adds
NoteList (panes)
BudgetView (panes)
LinesView (lines)      ``lines``: a scrolling page of prepared lines (``viewmodel.cells.Line``), selectable
=====================  =================================================================================================

Widgets fall back on the colours of ``tui.theme`` under a theme that lacks them.
"""
