"""The serving of clients, whatever protocol they speak."""
