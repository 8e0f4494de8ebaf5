"""merlin's eyes: generated pictures, the vision tower that learns from them, and its export."""
