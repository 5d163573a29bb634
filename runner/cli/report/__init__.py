"""``report``: what a job has come to, as a page in Markdown."""
