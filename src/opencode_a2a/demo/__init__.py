"""What a first run needs when nothing else is there yet: a model that costs nothing."""
