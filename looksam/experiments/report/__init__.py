"""Reports: what an experiment found, as text, figures and a page."""
