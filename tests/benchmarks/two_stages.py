"""A service with its parts apart, to compare with the simulation, which sees it only from outside:
an HTTP process that does one thing at a time, and an engine whose rows join between two steps."""

import heapq
import random
from collections import deque
from itertools import count

READ, WRITE = 0.0005, 0.0004  # mean seconds of the HTTP process
TOKENS = (3, 4, 5, 6, 6, 7, 8, 8)


class TwoStages:
    """Requests arrive at random, at a rate, until a moment."""

    def __init__(self, until, rate, seed):
        self.until, self.rate, self.now = until, rate, 0.0
        self.chance, self.numbers, self.events = random.Random(seed), count(), []
        self.http = deque()
        self.waiting, self.running, self.stepping = [], [], False
        self.answered = []

    def after(self, seconds, action):
        heapq.heappush(self.events, (self.now + seconds, next(self.numbers), action))

    def run(self):
        while self.events:
            self.now, _, action = heapq.heappop(self.events)
            action()
        return self.answered

    def arrive(self):
        arrived = self.now
        self.work(READ, lambda: self.submit(arrived))
        if (gap := self.chance.expovariate(self.rate)) < self.until - self.now:
            self.after(gap, self.arrive)

    def work(self, seconds, then):
        """Let the HTTP process do something, after what it has to do already."""
        self.http.append((seconds, then))
        if len(self.http) == 1:
            self.after(seconds * self.chance.uniform(0.7, 1.3), self.worked)

    def worked(self):
        self.http[0][1]()
        self.http.popleft()
        if self.http:
            self.after(self.http[0][0] * self.chance.uniform(0.7, 1.3), self.worked)

    def submit(self, arrived):
        self.waiting.append([arrived, self.chance.choice(TOKENS)])
        self.step()

    def step(self):
        """Encode what waits, and let all rows read a token."""
        if self.stepping or not (self.waiting or self.running):
            return
        encoding = 0.0004 + 0.00006 * len(self.waiting) if self.waiting else 0.0
        self.running, self.waiting, self.stepping = [*self.running, *self.waiting], [], True
        self.after(encoding + 0.00025 + 0.000025 * len(self.running), self.stepped)

    def stepped(self):
        self.stepping = False
        for row in self.running:
            row[1] -= 1
            if not row[1]:
                self.work(WRITE, lambda arrived=row[0]: self.answer(arrived))
        self.running = [row for row in self.running if row[1]]
        self.step()

    def answer(self, arrived):
        self.answered.append((arrived, self.now))


def two_stages(seconds, rate, seed):
    """Return when each request arrived and when it was answered."""
    service = TwoStages(seconds, rate, seed)
    service.after(service.chance.expovariate(rate), service.arrive)
    return service.run()
