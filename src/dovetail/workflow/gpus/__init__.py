"""What is on the GPUs: models and what a change costs, what is kept and shared, what live runs teach."""
