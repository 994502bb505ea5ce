#!/usr/bin/env python3
"""make-vectors.py > vectors.jsonl: answer pairs and their scores by the packages that LongBench itself uses, in a
virtual environment with rouge==1.0.1, fuzzywuzzy==0.18.0 and jieba==0.42.1, and without python-Levenshtein (which changes
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
import jieba
from fuzzywuzzy import fuzz
from rouge import Rouge

assert "Levenshtein" not in sys.modules
random.seed(7)
WORDS = ("the a an boat harbour keeper light red blue answer is was 42 1989 Ottoline Finch don't state-of-the-art e.g. U.S. "
         "été naïve Straße ÉCOLE 東京 数字 привет мир İstanbul ΣΑΣ ﬁne x² ½ ١٢ A.B. theory anthem Paragraph yes no unanswerable").split()
CODE = ("return self.value", "for i in range(n):", "x = foo(bar, baz)", "int main() {", "    if (a == b) return 0;",
        "# comment", "// comment", "```python", "def f(x):", "import os", "", "}", "print('hi')", "auto it = map.find(key);")
CHINESE = ("港口的守塔人名叫李望舒，他在1989年买下了那条红色的小船。", "灯塔每天晚上六点半亮起来，一直亮到天亮。", "风速达到每秒23.5米，海浪高度增加了40%。",
           "他说：“我从来没有见过这么大的雾！”", "答案是王小帅和周杰伦。", "研究生命的起源是一个非常复杂的问题", "北京大学生前来应聘", "这份AT&T公司的报告由Zhang Wei撰写，共128页。",
           "会议总结：第一，加强码头管理；第二，修复破损的缆绳……", "段落3讲述了渔民的生活", "無法回答", "龘靐齉爩魖", "欧几里得算法的时间复杂度是O(log n)。", "C++和c#都是编程语言, x_1-y.2",
           "乒乓球拍卖完了\r\n明天再来　谢谢", "ＡＢＣ１２３，全角字符", "", "。", "是")
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


def f1_of_tokens(p, a):
    same = sum((collections.Counter(p) & collections.Counter(a)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(p), same / len(a)
    return 2 * precision * recall / (precision + recall)


def f1(prediction, answer):
    def tokens(text):
        text = "".join(c for c in text.lower() if c not in set(string.punctuation))
        return re.sub(r"\b(a|an|the)\b", " ", text).split()
    return f1_of_tokens(tokens(prediction), tokens(answer))


def rouge_l(prediction, answer):
    try:
        return Rouge().get_scores([prediction], [answer], avg=True)["rouge-l"]["f"]
    except Exception:
        return 0.0


CHINESE_PUNCTUATION = "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､、〃》「」『』【】〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏."


def f1_zh(prediction, answer):
    def tokens(text):
        cleaned = ("".join("".join(c for c in word.lower() if c not in set(string.punctuation + CHINESE_PUNCTUATION)).split())
                   for word in jieba.cut(text, cut_all=False))
        return [word for word in cleaned if word]
    return f1_of_tokens(tokens(prediction), tokens(answer))


def rouge_l_zh(prediction, answer):
    return rouge_l(" ".join(jieba.cut(prediction)), " ".join(jieba.cut(answer)))


def chinese():
    text = "".join(random.choice(CHINESE) for _ in range(random.randint(1, 4)))
    if random.random() < 0.3:
        text += "".join(chr(random.randint(0x4E00, 0x9FFF)) for _ in range(random.randint(1, 12)))
    return text


def related_chinese(text):
    characters = list(text)
    for _ in range(random.randint(0, 8)):
        i = random.randrange(len(characters) + 1)
        if random.random() < 0.5 and i < len(characters):
            characters.pop(i)
        else:
            characters[i:i] = random.choice([*"的了是在和人大小一3a. ，", *CHINESE])
    return "".join(characters)


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
        elif metric in ("f1_zh", "rouge_l_zh"):
            text = chinese()
            yield text if i % 16 else "", [related_chinese(text) if i % 4 else chinese()] + ([chinese()] if i % 5 == 0 else [])
        elif metric == "retrieval_zh":
            n = str(random.randint(1, 30))
            yield random.choice(["", "段落", "是第", "Paragraph "]) + random.choice([n, n + "和7", "", "٣或" + n, n + n, "x" + n + "y，" + n]), ["段落" + n]
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


for metric in ["f1", "rouge_l", "classification", "count", "retrieval", "code_sim", "f1_zh", "rouge_l_zh", "retrieval_zh"]:
    function = {"f1": f1, "rouge_l": rouge_l, "classification": classification, "count": share, "code_sim": code_sim,
                "f1_zh": f1_zh, "rouge_l_zh": rouge_l_zh, "retrieval_zh": lambda p, a: share(p, re.findall(r"段落(\d+)", a)[0]),
                "retrieval": lambda p, a: share(p, re.findall(r"Paragraph (\d+)", a)[0])}[metric]
    for prediction, answers in pairs(metric):
        line = {"metric": metric, "prediction": prediction, "answers": answers, "score": max(function(prediction, a) for a in answers)}
        if metric == "classification":
            line["classes"] = CLASSES
        print(json.dumps(line, ensure_ascii=False))
