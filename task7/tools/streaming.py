"""Tokens to text as they come. A byte-level BPE token may end in the middle of a character."""


class TextStream:
    """Decodes token ids one by one and passes text on to `write` as soon as its characters are complete.

    tokenizer: anything with `decode(list of ids) -> str` that decodes an incomplete character as U+FFFD.
    Call `close` at the end: an incomplete rest is then written as U+FFFD.
    """

    def __init__(self, tokenizer, write):
        self.tokenizer = tokenizer
        self.write = write
        self.pending = []  # ids since the last point where all characters were complete
        self.written = 0  # characters of the pending text that are already written

    def put(self, token):
        self.pending.append(token)
        text = self.tokenizer.decode(self.pending)
        complete = text.rstrip("\ufffd")
        self._write(complete)
        if complete == text:
            self.pending, self.written = [], 0

    def close(self):
        self._write(self.tokenizer.decode(self.pending))
        self.pending, self.written = [], 0

    def _write(self, text):
        if len(text) > self.written:
            self.write(text[self.written :])
            self.written = len(text)
