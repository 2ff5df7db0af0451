#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write mini_mooncake.jsonl: a small synthetic trace in Mooncake's format.

Usage: make_mini.py > mini_mooncake.jsonl

Conversations of one to five turns, interleaved. A conversation starts with one of three shared
prompts, and each turn's input is all that came before plus a new question, so turns share their
prefix with each other and conversations with their prompt. The numbers come from a small generator
of its own, so every Python writes the same bytes.
"""
import json

BLOCK = 512
NUM_REQUESTS = 60


class Random:
    """The 64-bit linear congruential generator of Knuth's MMIX; the upper bits are used."""

    def __init__(self, seed):
        self.state = seed

    def below(self, count):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % count

    def between(self, least, most):
        return least + self.below(most - least + 1)


class Conversation:
    """Blocks that are full keep their hash id for ever; the last, partial one gets a new id each
    turn, as its content changes."""

    def __init__(self, prompt_ids):
        self.full_ids = list(prompt_ids)
        self.length = len(prompt_ids) * BLOCK

    def turn(self, question, answer, new_id):
        self.length += question
        while len(self.full_ids) < self.length // BLOCK:
            self.full_ids.append(new_id())
        input_length, ids = self.length, list(self.full_ids)
        if self.length % BLOCK:
            ids.append(new_id())
        self.length += answer
        return {"input_length": input_length, "output_length": answer, "hash_ids": ids}


def main():
    random = Random(2024)
    next_id = iter(range(10**6)).__next__
    prompts = [[next_id() for _ in range(blocks)] for blocks in (1, 2, 4)]
    open_ones, timestamp = [], 0
    for _ in range(NUM_REQUESTS):
        if not open_ones or random.below(3) == 0:
            prompt = prompts[random.below(len(prompts))]
            open_ones.append((Conversation(prompt), random.between(1, 5)))
        pick = random.below(len(open_ones))
        conversation, turns_left = open_ones.pop(pick)
        row = {"timestamp": timestamp}
        row.update(conversation.turn(random.between(40, 1200), random.between(1, 220), next_id))
        print(json.dumps(row))
        if turns_left > 1:
            open_ones.append((conversation, turns_left - 1))
        timestamp += random.between(0, 900)


if __name__ == "__main__":
    main()
