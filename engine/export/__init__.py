"""What leaves a session: modules, training data, bundles."""
