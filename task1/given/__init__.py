"""What the student reads: headers, bindings, the Python side."""
