"""Models as chains of layers, from whatever form they come in."""
