"""What people read: one content tree, drawn in a terminal, as HTML and as Markdown."""
