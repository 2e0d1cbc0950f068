"""Messages as a node takes them in and keeps them: admission, the stored form, pages, cursors."""
