"""What a forward is called with: arguments and weights as values, and how they are varied."""
