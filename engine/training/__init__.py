"""Training a draft head on what the model says itself: corpus, features, fitting, evaluation."""
