"""Inputs of a trial: how they are drawn, and the perturbed ones."""
