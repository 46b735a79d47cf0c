"""Plain-Python twin of the block pool: a list for the free queue, a list of copies for every key.

Imports nothing from jaxmem. `trap` puts one of the mistakes of research/vllm.md's table back in.
"""


class Pool:
    def __init__(self, n_block, size, *, is_caching=True, fronts_unkeyed=True, trap=""):
        self.size, self.is_caching, self.fronts, self.trap = size, is_caching, fronts_unkeyed, trap
        first = 0 if trap == "capacity_n" else 1
        self.free = list(range(first, n_block))
        self.n_usable = len(self.free)
        self.ref = [0] * n_block
        self.key = [None] * n_block
        self.copies = {}
        self.evictions = 0
        if trap == "append_unkeyed":
            self.fronts = False

    def n_blocks(self, tokens):
        return -(-tokens // self.size)

    def lookup(self, keys, tokens):
        """Blocks of the longest cached prefix; the last token is always left to compute."""
        if not self.is_caching:
            return []
        cap = tokens if self.trap == "no_last_token_cap" else tokens - 1
        found = []
        for key in keys[: cap // self.size]:
            copies = self.copies.get(key)
            if not copies:
                break
            found.append(copies[-1 if self.trap == "newest_copy" else 0])
        if self.trap == "lookup_refreshes":
            for block in found:
                if block in self.free:
                    self.free.remove(block)
                    self.free.append(block)
        return found

    def n_needed(self, hits, held, tokens):
        """Blocks that must be free for `tokens` tokens in all."""
        need = max(self.n_blocks(tokens) - len(hits) - held, 0)
        if self.trap != "unused_hits_uncounted":
            need += sum(self.ref[block] == 0 for block in hits)
        return need

    def touch(self, hits):
        for block in hits:
            if self.ref[block] == 0:
                self.free.remove(block)
            self.ref[block] += 1

    def take(self, n):
        taken = []
        for _ in range(n):
            block = self.free.pop(0)
            if self.key[block] is not None:
                self._forget(block)
                self.evictions += 1
            self.ref[block] = 1
            taken.append(block)
        return taken

    def publish(self, block, key):
        if not self.is_caching:
            return
        if self.trap == "dedupe" and self.copies.get(key):
            return
        self.key[block] = key
        self.copies.setdefault(key, []).append(block)

    def release(self, held):
        front, back = [], []
        for block in held if self.trap == "free_head_first" else reversed(held):
            self.ref[block] -= 1
            if self.ref[block] == 0:
                is_front = self.key[block] is None and self.fronts
                (front if is_front else back).append(block)
        self.free = front + self.free + back

    def _forget(self, block):
        copies = self.copies[self.key[block]]
        copies.remove(block)
        if not copies:
            del self.copies[self.key[block]]
        self.key[block] = None
