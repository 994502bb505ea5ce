#!/usr/bin/env python3
"""make-vectors.py > vectors.jsonl: answer pairs and their scores by the packages that LongBench itself uses, in a
virtual environment with rouge==1.0.1 and fuzzywuzzy==0.18.0 and without python-Levenshtein (which changes
fuzz.ratio). Each line: metric, prediction, answers, classes, score. The metrics' few lines around the packages follow
their published definitions."""
import collections
import json
import random
import re
import string
import sys
import warnings

warnings.simplefilter("ignore")
from fuzzywuzzy import fuzz
from rouge import Rouge

assert "Levenshtein" not in sys.modules
random.seed(7)
WORDS = ("the a an boat harbour keeper light red blue answer is was 42 1989 Ottoline Finch don't state-of-the-art e.g. U.S. "
         "été naïve Straße ÉCOLE 東京 数字 привет мир İstanbul ΣΑΣ ﬁne x² ½ ١٢ A.B. theory anthem Paragraph yes no unanswerable").split()
CODE = ("return self.value", "for i in range(n):", "x = foo(bar, baz)", "int main() {", "    if (a == b) return 0;",
        "# comment", "// comment", "```python", "def f(x):", "import os", "", "}", "print('hi')", "auto it = map.find(key);")
CLASSES = ["Food", "Fast food", "Sport", "Other sport", "Date", "Number", "City", "City state", "Definition of something"]


def words(count):
    return " ".join(random.choice(WORDS) + random.choice(["", "", ",", ".", "!", "?", "\n", "  ", " "]) for _ in range(count))


def related(text):
    parts = text.split(" ")
    for _ in range(random.randint(0, 4)):
        i = random.randrange(len(parts)) if parts else 0
        action = random.randint(0, 3)
        if action == 0 and parts:
            parts.pop(i)
        elif action == 1:
            parts.insert(i, random.choice(WORDS))
        elif action == 2 and parts:
            parts[i] = parts[i].upper()
        else:
            parts = parts[i:] + parts[:i]
    return " ".join(parts)


def f1(prediction, answer):
    def tokens(text):
        text = "".join(c for c in text.lower() if c not in set(string.punctuation))
        return re.sub(r"\b(a|an|the)\b", " ", text).split()
    p, a = tokens(prediction), tokens(answer)
    same = sum((collections.Counter(p) & collections.Counter(a)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(p), same / len(a)
    return 2 * precision * recall / (precision + recall)


def rouge_l(prediction, answer):
    try:
        return Rouge().get_scores([prediction], [answer], avg=True)["rouge-l"]["f"]
    except Exception:
        return 0.0


def share(prediction, wanted):
    numbers = re.findall(r"\d+", prediction)
    return sum(n == wanted for n in numbers) / len(numbers) if numbers else 0.0


def classification(prediction, answer):
    named = [c for c in CLASSES if c in prediction]
    for c in named:
        if c in answer and c != answer:
            named.remove(c)
    return 1 / len(named) if answer in named else 0.0


def code_sim(prediction, answer):
    line = next((l for l in prediction.lstrip("\n").split("\n") if "`" not in l and "#" not in l and "//" not in l), "")
    return fuzz.ratio(line, answer) / 100


def pairs(metric, count=320):
    for i in range(count):
        if metric in ("f1", "rouge_l"):
            text = words(random.randint(0, 40) if i % 8 else 0)
            answer = related(text) if i % 3 else words(random.randint(0, 12))
            yield text, [answer] if i % 5 else [answer, words(3)]
        elif metric == "classification":
            yield " ".join(random.sample(CLASSES, random.randint(0, 4))) + random.choice(["", ".", "\nDate"]), [random.choice(CLASSES)]
        elif metric in ("count", "retrieval"):
            n = str(random.randint(1, 30))
            text = random.choice(["", "It is ", "Paragraph ", "段落"]) + random.choice([n, n + " and 7", "", "٣ or " + n, n + n, "x" + n + "y, " + n])
            yield text, [n if metric == "count" else random.choice(["Paragraph " + n, "It is Paragraph " + n + "."])]
        else:
            answer = random.choice(CODE) if i % 3 else "".join(random.choice("abcdefg (),=.\t_") for _ in range(random.randint(150, 420)))
            line = list(answer)
            for _ in range(random.randint(0, 6 if len(line) < 100 else 60)):
                if line:
                    line[random.randrange(len(line))] = random.choice("xyz é界(")
            text = "".join(line)
            yield random.choice(["", "\n\n", "# note\n", "```\n", "// no\n\n"]) + text + random.choice(["", "\nmore", "\n```"]), [answer]


for metric in ["f1", "rouge_l", "classification", "count", "retrieval", "code_sim"]:
    function = {"f1": f1, "rouge_l": rouge_l, "classification": classification, "count": share, "code_sim": code_sim,
                "retrieval": lambda p, a: share(p, re.findall(r"Paragraph (\d+)", a)[0])}[metric]
    for prediction, answers in pairs(metric):
        line = {"metric": metric, "prediction": prediction, "answers": answers, "score": max(function(prediction, a) for a in answers)}
        if metric == "classification":
            line["classes"] = CLASSES
        print(json.dumps(line, ensure_ascii=False))
