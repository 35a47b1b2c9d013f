"""llama.cpp's tokenizer and chat format of a GGUF file, without its weights. Not a program of its own.

    pip install llama-cpp-python
"""
import llama_cpp


class Tokenizer:
    """llama.cpp's tokenizer of a GGUF file."""

    def __init__(self, path):
        self.engine = f"llama.cpp (llama-cpp-python {llama_cpp.__version__})"
        self._model = llama_cpp.Llama(path, vocab_only=True, verbose=False)
        self._meta = self._model.metadata
        self.bos_ids = self._model.tokenize(b"", add_bos=True)  # empty where the model adds no BOS

    def ids(self, text, special=False, bos=False):
        return self._model.tokenize(text.encode(), add_bos=bos, special=special)

    def pieces(self, ids, special=True):
        return self._model.detokenize(ids, special=special)

    def is_one_token(self, spelling):
        return len(self.ids(spelling, special=True)) == 1

    def chat(self, messages):
        """The prompt text of a conversation, ready for the assistant's turn; None for a model without a chat format."""
        template = self._meta.get("tokenizer.chat_template")
        if template:
            from jinja2.sandbox import ImmutableSandboxedEnvironment as Environment

            turns = [{"role": role, "content": content} for role, content in messages]
            return Environment().from_string(template).render(messages=turns, add_generation_prompt=True)
        if not self.is_one_token("<start_of_turn>"):
            return None
        system = "".join(f"{content}\n\n" for role, content in messages if role == "system")
        text = ""
        for role, content in (m for m in messages if m[0] != "system"):
            text += f"<start_of_turn>{'model' if role == 'assistant' else role}\n{system}{content}<end_of_turn>\n"
            system = ""
        return text + "<start_of_turn>model\n"
