"""Who proposes and who writes: sources of ideas and of code, all of one kind."""
