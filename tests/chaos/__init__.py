"""Campaigns against Holdfast's promises: real kills, power losses and damage, with witnesses outside of the program."""
