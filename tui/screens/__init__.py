"""What fills the terminal: home, session, gate, compare, and the small screens that ask for something."""
