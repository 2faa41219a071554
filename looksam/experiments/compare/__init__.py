"""Methods side by side on one recipe: many seeds at once, equal tuning, interleaved timing."""
