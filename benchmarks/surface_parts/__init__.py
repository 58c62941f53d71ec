"""The parts of surfaces.py: data roots with their servers, the situations, the surfaces, and what is looked for."""
