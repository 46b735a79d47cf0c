"""Plain-Python twin of the scheduler: running list, waiting list, one step at a time.

Imports nothing from jaxmem. A request is a dict of prompt, output, keys, arrival and follower.
"""

from vllm_pool import Pool


class Scheduler:
    def __init__(self, n_block, size, *, max_running, max_tokens, long_prefill=0, watermark=0.0,
                 reserves_full=True, trap="", **pool):  # fmt: skip
        self.pool = Pool(n_block, size, trap=trap, **pool)
        self.max_running, self.max_tokens = max_running, max_tokens
        self.long_prefill, self.reserves_full, self.trap = long_prefill, reserves_full, trap
        self.watermark = int(watermark * n_block)
        self.running, self.waiting, self.preemptions = [], [], 0

    def arrive(self, request):
        most = max(request["prompt"] + request["output"] - 1, request["prompt"])
        if self.pool.n_blocks(most) > self.pool.n_usable:
            request["rejected"] = True
            return
        request.update(tokens=request["prompt"], computed=0, held=[], published=0, seen=False)
        self.waiting.append(request)

    def step(self):
        """(batch rows, preempted, finished, counts); a row is (request, tokens, context, how)."""
        budget, rows, preempted, i = self.max_tokens, [], [], 0
        while i < len(self.running) and budget > 0:
            request = self.running[i]
            n = self._share(request["tokens"] - request["computed"], budget)
            while not self._extend(request, n):
                victim = self.running.pop()
                self._preempt(victim)
                preempted.append(victim)
                if victim is request:
                    break
            else:
                rows.append((request, n, request["computed"], "decode"))
                budget -= n
                i += 1
                continue
            break
        while not preempted and self.waiting and budget > 0:
            if len(self.running) >= self.max_running:
                break
            request = self.waiting[0]
            pool, size = self.pool, self.pool.size
            hits = pool.lookup(request["keys"], request["tokens"])
            context = len(hits) * size
            n = self._share(request["tokens"] - context, budget)
            whole = request["tokens"] if self.reserves_full else 0
            need = pool.n_needed(hits, 0, max(context + n, whole))
            if need + (self.watermark if self.running else 0) > len(pool.free):
                break
            pool.touch(hits)
            request["held"] = hits + pool.take(pool.n_blocks(context + n) - len(hits))
            request["published"], request["computed"] = len(hits), context
            self._publish(request, n)
            self.running.append(self.waiting.pop(0))
            rows.append((request, n, context, "resumed" if request["seen"] else "new"))
            request["seen"] = True
            budget -= n
        counts = [len(self.running), len(self.waiting), len(self.pool.free)]
        finished = self._update(rows)
        return rows, preempted, finished, [*counts, len(self.pool.free), self.pool.evictions]

    def _share(self, n, budget):
        is_alone = len(self.running) + len(self.waiting) <= 1
        if 0 < self.long_prefill < n and not is_alone:
            n = self.long_prefill
        return min(n, budget)

    def _extend(self, request, n):
        pool, held = self.pool, request["held"]
        need = pool.n_needed([], len(held), request["computed"] + n)
        if need > len(pool.free):
            return False
        held += pool.take(need)
        self._publish(request, n)
        return True

    def _publish(self, request, n):
        full = min(request["computed"] + n, request["tokens"]) // self.pool.size
        for i in range(request["published"], full):
            self.pool.publish(request["held"][i], request["keys"][i])
        request["published"] = max(full, request["published"])

    def _preempt(self, victim):
        self.pool.release(victim["held"])
        victim.update(computed=0, held=[], published=0)
        self.preemptions += 1
        place = len(self.waiting) if self.trap == "preempted_to_back" else 0
        self.waiting.insert(place, victim)

    def _update(self, rows):
        finished = []
        for request, n, _, _ in rows:
            request["computed"] += n
            if request["computed"] == request["tokens"]:
                request["tokens"] += 1
                if request["tokens"] - request["prompt"] >= request["output"]:
                    if self.trap == "cache_last_token":
                        request["computed"] += 1
                        self._publish_last(request)
                    self.pool.release(request["held"])
                    self.running.remove(request)
                    finished.append(request)
        return finished

    def _publish_last(self, request):
        full = min(request["tokens"] // self.pool.size, len(request["held"]))
        for i in range(request["published"], full):
            self.pool.publish(request["held"][i], request["keys"][i])
