"""The widgets of the session's face. Each shows one thing, is fed by reactives and answers with messages.

Every widget that shows a session has ``state: reactive[SessionState | None]`` (compared by identity), set by the screen.
None of them submits anything or knows where the state comes from.

==================  ==============================================================================================
widget (module)     reactives beyond ``state`` · methods · messages
==================  ==============================================================================================
KernelTree          ``selected: str``, ``marked: str``, ``folded: frozenset[str]``, ``pattern: str`` (filter),
(kernel_tree)       ``sort: tree_rows.Sort`` (BORN, BRANCH, RANK) · ``reveal(kernel)``, ``visible_kernels``, actions
                    ``cursor_up|cursor_down|page_up|page_down|first|last|fold|unfold|toggle_fold|fold_all|unfold_all|
                    open|mark`` · ``Selected(kernel)``, ``Opened(kernel)`` (Enter, double click), ``Marked(kernel)``
IdeaList            ``round: int | None`` (``None``: the open round, or the last), ``highlighted: str``, ``order:
(idea_list)         tuple[str, ...]`` (the screen's own order, may be empty) · ``ideas`` (ids as shown), actions
                    ``cursor_up|cursor_down|first|last|choose`` · ``Highlighted(idea)``, ``Chosen(idea)`` (Enter, double click)
DetailTabs          ``kernel: str``, ``other: str`` (diff against it; "" = the parent), ``progress: Mapping[str, str]``,
(detail_tabs)       ``tab: Tab`` · constructor ``DetailTabs(read_blob, read_mix=None, *, steered=True)``;
                    ``read_blob(sha) -> str`` (raises where it is absent), ``read_mix(kernel) -> Mapping[str, int] | None`` ·
                    ``show(tab)`` with ``Tab.IDEA|CODE|DIFF|VERIFICATION|TIMING|MACHINE|LOG``, ``next_tab()``,
                    ``previous_tab()``, ``source_text`` (what "copy code" copies), keys 1-7 · ``TabShown(tab)``
StageStrip          ``progress: Mapping[str, str]`` (work key → latest word)
(stage_strip)
Charts (charts)     ``selected: str`` · two plots in tabs-free columns or rows by width: ``SpeedupChart``, ``Roofline``
SessionHeader       ``note: str`` ("replay", "following", …), ``paused: bool``, ``deadline: float | None`` (epoch seconds
(session_header)    at which the policy decides), ``now: float``, ``telemetry: str`` (GPU load, temperature, throttling)
TransportBar        ``position``, ``length``, ``playing``, ``speed``, ``ticks: tuple[int, ...]`` (places of rounds),
(transport_bar)     ``caption: str`` · ``SeekRequested(position)``, ``PlayToggled()``, ``SpeedChanged(speed)``
LogView (log_view)  ``show(entries)`` draws anew (after a seek), ``push(entries)`` adds · events in words, markup never
NoteList            ``target: str | None`` (``None``: every note)
(note_list)
LinesView (lines)   ``lines: Sequence[Line]``: a scrolling page of prepared lines (``viewmodel.cells.Line``), selectable
==================  ==============================================================================================

Colours: ``tui.theme`` has ``THEMES`` to register, the names ``DARK``, ``LIGHT`` and ``SIXTEEN``, ``suited(color_system, dark)``
to choose one for a terminal, ``variable_defaults(dark)`` for ``App.get_theme_variable_defaults``. Widgets fall back on these by
themselves under a theme that lacks them.
"""
