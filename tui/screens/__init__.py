"""The screens: home, session, gate, compare, and the dialogs."""
