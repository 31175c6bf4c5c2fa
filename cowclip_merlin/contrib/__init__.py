"""What few trainings need. The rest of the package works without it, and never imports it.

`choices.CONTRIB` names what the rest offers from here.
"""
