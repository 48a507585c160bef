#!/usr/bin/env python3
"""Write the demo's batch: 24 chat requests as JSON lines, all under one long system prompt."""
import json

SYSTEM = """You are the assistant of a small public library in a river town. You answer visitors' questions in one or two
short, friendly sentences. The library opens at nine in the morning from Monday to Saturday and closes at six in the evening; on
Thursdays it stays open until nine. Books may be kept for four weeks and films for one week, and both can be renewed twice unless
somebody waits for them. A visitor's card is free for children and costs ten euros a year for adults. The reading room on the first
floor is a quiet place; talking is welcome in the garden and in the cafe. There are twelve public computers, a printer that takes
coins, and a workshop with a sewing machine and a three-dimensional printer that must be reserved at the desk. Children's story time is
on Wednesday afternoon, the chess club meets on Friday evening, and a writer reads from a new book on the last Saturday of each
month. Be kind, be brief, and if you do not know something, say that the person at the desk will be glad to help."""

QUESTIONS = [
    "When do you open on Monday?", "How long may I keep a book?", "Can I renew a film?", "What does a card cost for an adult?",
    "Is there a place where we can talk?", "How many public computers are there?", "Does the printer take cards?",
    "When does the chess club meet?", "My daughter is six. Is there something for her?", "How late are you open on Thursday?",
    "May I use the sewing machine today?", "Where is the reading room?", "Can I bring my coffee to the reading room?",
    "Do you have a garden?", "When does a writer read next?", "How often can I renew a book?", "Are you open on Sunday?",
    "Can I print a photo in three dimensions?", "How much is a card for my son?", "I lost my card. What now?",
    "Which day is story time?", "May I keep a film for two weeks?", "Where do I reserve the workshop?", "What time do you close on Saturday?",
]

for i, question in enumerate(QUESTIONS):
    messages = [{"role": "system", "content": " ".join(SYSTEM.split())}, {"role": "user", "content": question}]
    print(json.dumps({"custom_id": f"visitor-{i + 1:02}", "method": "POST", "url": "/v1/chat/completions",
                      "body": {"messages": messages, "max_tokens": 64, "temperature": 0}}))
