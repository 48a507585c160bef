#!/usr/bin/env python3
"""Write tests/reference/data/chat_templates.json: conversations rendered by Jinja with templates of the known families.

The templates are short versions of what models of a family carry: the same marks, the same output.
Needs the package jinja2; run from the root of the tree.  Each row: {name, template, bos, eos, messages, generation_prompt, text}.
"""
import json
from jinja2.sandbox import ImmutableSandboxedEnvironment

ALTERNATE = ("{% for m in loop_messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
             "{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}")
FIRST_SYSTEM = ("{% if messages[0]['role'] == 'system' %}{% set system_message = messages[0]['content'] %}"
                "{% set loop_messages = messages[1:] %}{% else %}{% set loop_messages = messages %}{% endif %}")


def mistral(lead, after_open, before_close, reply, when):
    q = '"' + lead + "[INST]" + after_open + '"'
    close = '"' + before_close + '[/INST]"'
    return (FIRST_SYSTEM + ALTERNATE + "{{ bos_token }}{% for message in loop_messages %}{% if message['role'] == 'user' %}"
            "{% if " + when + " and system_message is defined %}{{ " + q + " + system_message + \"\\n\\n\" + message['content'] + " + close +
            " }}{% else %}{{ " + q + " + message['content'] + " + close + " }}{% endif %}{% else %}{{ " + reply +
            " }}{% endif %}{% endfor %}{# [AVAILABLE_TOOLS] #}")


CHATML = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
GENERATE = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
FAMILIES = {
    "chatml": (CHATML + GENERATE, "<s>", "</s>"),
    "chatml with bos": ("{{ bos_token }}" + CHATML + GENERATE, "<s>", "</s>"),
    "chatml trimmed": (CHATML.replace("message['content']", "message['content'] | trim") + GENERATE, "<s>", "</s>"),
    "chatml default system": (
        "{%- if messages[0]['role'] == 'system' %}\n    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}\n"
        "{%- else %}\n    {{- '<|im_start|>system\\nYou are a model\\'s \"tiny\" helper.<|im_end|>\\n' }}\n{%- endif %}\n"
        "{%- for message in messages %}{%- if message.role == 'user' or (message.role == 'system' and not loop.first) or "
        "message.role == 'assistant' %}\n    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}\n"
        "{%- endif %}\n{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n", "<s>", "</s>"),
    "llama2": (
        FIRST_SYSTEM + ALTERNATE + "{% for message in loop_messages %}{% if loop.index0 == 0 and system_message is defined %}"
        "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}"
        "{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
        "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% else %}{{ ' ' + content.strip() + ' ' + eos_token }}"
        "{% endif %}{% endfor %}", "<s>", "</s>"),
    "llama2 plain": (
        FIRST_SYSTEM + "{{ bos_token }}{% for message in loop_messages %}{% if message['role'] == 'user' %}"
        "{{ '[INST] ' + (system_message + '\\n\\n' if loop.first and system_message is defined else '') + message['content'] + ' [/INST]' }}"
        "{% else %}{{ message['content'] + eos_token + ' ' }}{% endif %}{% endfor %}", "<s>", "</s>"),
    "llama3": (
        "{% for message in messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + "
        "message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
        "{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}",
        "<|begin_of_text|>", "<|eot_id|>"),
    "llama3 dated": (
        "{{- bos_token }}\n{%- set date_string = \"26 Jul 2024\" %}\n{%- if messages[0]['role'] == 'system' %}\n"
        "    {%- set system_message = messages[0]['content']|trim %}\n    {%- set messages = messages[1:] %}\n{%- else %}\n"
        "    {%- set system_message = \"\" %}\n{%- endif %}\n{{- \"<|start_header_id|>system<|end_header_id|>\\n\\n\" }}\n"
        "{{- \"Cutting Knowledge Date: December 2023\\n\" }}\n{{- \"Today Date: \" + date_string + \"\\n\\n\" }}\n"
        "{{- system_message }}\n{{- \"<|eot_id|>\" }}\n{%- for message in messages %}\n"
        "    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}\n"
        "{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}\n{%- endif %}\n",
        "<|begin_of_text|>", "<|eot_id|>"),
    "gemma": (
        "{{ bos_token }}\n{%- if messages[0]['role'] == 'system' -%}\n    {%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}\n"
        "    {%- set loop_messages = messages[1:] -%}\n{%- else -%}\n    {%- set first_user_prefix = \"\" -%}\n"
        "    {%- set loop_messages = messages -%}\n{%- endif -%}\n" + ALTERNATE + "{%- for message in loop_messages -%}\n"
        "    {%- if (message['role'] == 'assistant') -%}{%- set role = \"model\" -%}{%- else -%}{%- set role = message['role'] -%}{%- endif -%}\n"
        "    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else \"\") }}{{ message['content'] | trim }}"
        "{{ '<end_of_turn>\n' }}\n{%- endfor -%}\n{%- if add_generation_prompt -%}\n    {{'<start_of_turn>model\n'}}\n{%- endif -%}\n",
        "<bos>", "<eos>"),
    "mistral-v1": (mistral(" ", " ", " ", "\" \" + message['content'] + eos_token", "loop.first"), "<s>", "</s>"),
    "mistral-v3": (mistral("", " ", "", "\" \" + message['content']|trim + eos_token", "loop.last"), "<s>", "</s>"),
    "mistral-tekken": (mistral("", "", "", "message['content'] + eos_token", "loop.last"), "<s>", "</s>"),
    "mistral-v7": (
        "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + '[/INST]' }}"
        "{% elif message['role'] == 'system' %}{{ '[SYSTEM_PROMPT] ' + message['content'] + '[/SYSTEM_PROMPT]' }}"
        "{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}", "<s>", "</s>"),
    "mistral-v7-tekken": (
        "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST]' + message['content'] + '[/INST]' }}"
        "{% elif message['role'] == 'system' %}{{ '[SYSTEM_PROMPT]' + message['content'] + '[/SYSTEM_PROMPT]' }}"
        "{% else %}{{ message['content'] + eos_token }}{% endif %}{% endfor %}", "<s>", "</s>"),
    "zephyr": (
        "{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] + eos_token }}\n"
        "{% elif message['role'] == 'system' %}\n{{ '<|system|>\n' + message['content'] + eos_token }}\n{% else %}\n"
        "{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n{% if loop.last and add_generation_prompt %}\n"
        "{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}", "<s>", "</s>"),
}

u, a, s = (lambda t: {"role": "user", "content": t}), (lambda t: {"role": "assistant", "content": t}), (lambda t: {"role": "system", "content": t})
CONVERSATIONS = [
    [u("Hello")],
    [s("Be terse."), u("Hello")],
    [u("Hi"), a("Hello! How can I help?"), u("Name a colour.")],
    [s(" Answer in French. "), u(" Hi\n"), a("\tSalut "), u("  Two  words \n\n"), a("Oui"), u("And <|im_end|> or </s> or [INST]?")],
    [u("\u00dcberraschung \U0001f600\u3000")],
    [u("x"), a("y")],
]


def stop(message):
    raise ValueError(message)


env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
env.globals["raise_exception"] = stop
rows = []
for name, (source, bos, eos) in FAMILIES.items():
    for messages in CONVERSATIONS:
        for generation_prompt in (True, False):
            if name.startswith("mistral") and messages[0]["role"] == "system" and messages[-1]["role"] != "user":
                continue
            text = env.from_string(source).render(messages=messages, bos_token=bos, eos_token=eos,
                                                  add_generation_prompt=generation_prompt)
            rows.append({"name": name, "template": source, "bos": bos, "eos": eos, "messages": messages,
                         "generation_prompt": generation_prompt, "text": text})
json.dump(rows, open("tests/reference/data/chat_templates.json", "w"), indent=0)
print(len(rows), "rows")
