"""Built-in texts in many scripts, for comparing a converted tokenizer with its original."""

import random
import unicodedata
from collections.abc import Callable

COUNT = 500
WORDS = {
    "English": "the weather is lovely today and we walked along river banks without umbrella",
    "French": "où est le château près de la forêt naïve garçon œuvre Noël déjà goût",
    "German": "Straße über Mädchen fröhlich schön Donaudampfschiff Öl größer weiß Übung",
    "Vietnamese": "một người Việt Nam đường phố Hà Nội những điều tưởng chừng rất nhỏ",
    "Turkish": "İstanbul ışık çiçek öğretmen güneş şehir ağaç kırmızı ılık yağmur",
    "Polish": "zażółć gęślą jaźń źdźbło ćma wąż łódka świętość żółw trzcina",
    "Czech": "příliš žluťoučký kůň úpěl ďábelské ódy řeřicha šťastný město",
    "Yoruba": "ọjọ́ ẹ̀kọ́ ọ̀rẹ́ ṣé báwo ni ìlú ńlá gbogbo ènìyàn",
    "Cyrillic": "съешь ещё этих мягких французских булок Київ їжак ґанок ћевапи ѓавол",
    "Greek": "Ελλάδα θάλασσα ήλιος καλημέρα ψυχή ὁ ἄνθρωπος ᾧ ᾴδης φῶς ΐδιος",
    "Armenian": "Հայաստան լեռներ գեղեցիկ արև ջուր մայրիկ և բարև երկինք ուղի",
    "Georgian": "საქართველო მთები ლამაზი გამარჯობა წყალი დედა მზე გზა ქალაქი",
    "Hebrew": "שלום עולם בְּרֵאשִׁית בָּרָא ירושלים ספר ילדים מים שָׁמַיִם",
    "Arabic": "السلام عليكم مُحَمَّدٌ كِتَابٌ مدرسة جميلة القرآن لا إله أُمَّة",
    "Persian": "می‌خواهم کتاب‌ها زیبا ایران گربه چشمه پنجره ژاله خانه‌ای",
    "Urdu": "آپ کیسے ہیں پاکستان خوبصورت بچّے لڑکی ٹھیک ۂ ۓ",
    "Syriac": "ܫܠܡܐ ܥܠܡܐ ܐܪܡܝܐ ܟܬܒܐ ܡܝܐ ܝܘܡܐ ܒܝܬܐ",
    "Thaana": "ދިވެހި ރާއްޖެ ސަލާމް ކޮބާ ކަނޑު މަސް ފޮތް",
    "Devanagari": "नमस्ते दुनिया हिन्दी क़लम ज़िन्दगी फ़िल्म लड़का पढ़ना श्री क्षेत्र",
    "Bengali": "আমার সোনার বাংলা বড় গাড়ি ঢাকায় কোনো বৌ মেয়ে কৃষ্ণ",
    "Gurmukhi": "ਪੰਜਾਬ ਸਤਿ ਸ੍ਰੀ ਅਕਾਲ ਸ਼ਹਿਰ ਜ਼ਮੀਨ ਫ਼ਸਲ ਖ਼ੁਸ਼ੀ ਪਾਣੀ",
    "Gujarati": "ગુજરાત નમસ્તે પાણી સૂર્ય શાળા પુસ્તક કૃપા સુંદર",
    "Odia": "ଓଡ଼ିଶା ନମସ୍କାର ପାଣି ସୂର୍ଯ୍ୟ କୋଣାର୍କ ବୌଦ୍ଧ ଗାଢ଼ ଘର",
    "Tamil": "தமிழ் வணக்கம் கோயில் பொன் கௌரவம் மழை நீர் ஔவையார்",
    "Telugu": "తెలుగు నమస్కారం నీరు సూర్యుడు పుస్తకం వైద్యుడు కృష్ణా",
    "Kannada": "ಕನ್ನಡ ನಮಸ್ಕಾರ ನೀರು ಪುಸ್ತಕ ಕೋಟೆ ಮೈಸೂರು ಹೊಸ ಜೀವನ",
    "Malayalam": "മലയാളം നമസ്കാരം വെള്ളം പുസ്തകം കോഴിക്കോട് പൊന്ന് മൗനം",
    "Sinhala": "සිංහල ආයුබෝවන් වතුර පොත ශ්‍රී ලංකාව කෝපි හෞ ගෞරව",
    "Thai": "สวัสดีครับ น้ำ ประเทศไทย ภาษาไทย กำลัง เรียน หนังสือ ผู้คน",
    "Lao": "ສະບາຍດີ ນ້ຳ ປະເທດລາວ ພາສາ ຫຼາຍ ໝາ ຄຳ ຮຽນ",
    "Tibetan": "བོད་ཡིག བཀྲ་ཤིས་བདེ་ལེགས ཆུ དཔེ་ཆ ཉི་མ གངས་རི",
    "Burmese": "မြန်မာ မင်္ဂလာပါ ရေ စာအုပ် ကျောင်း ဦး ခင်ဗျား လှပသော",
    "Khmer": "ភាសាខ្មែរ សួស្តី ទឹក សៀវភៅ ប្រទេសកម្ពុជា ផ្ទះ ព្រះ",
    "Ethiopic": "ሰላም ኢትዮጵያ አማርኛ ውሃ መጽሐፍ ፀሐይ ቤት ልጆች",
    "Korean": "안녕하세요 세계 한국어 물 책을 읽다 값 닭이 서울특별시 없었다",
    "Japanese": "こんにちは 世界 が ぎょうざ パソコン ヴァイオリン 東京都 図書館 です ペン",
    "Chinese": "你好 世界 中文 學習 图书馆 北京市 我们喜欢 水 漢字 龍",
    "Mongolian": "ᠮᠣᠩᠭᠣᠯ ᠪᠢᠴᠢᠭ ᠰᠠᠶᠢᠨ ᠤᠰᠤ ᠨᠣᠮ",
    "Cherokee": "ᏣᎳᎩ ᎣᏏᏲ ᎠᎹ ᎪᏪᎵ ᏅᏙ ᎦᏚᎲ",
    "Inuktitut": "ᐃᓄᒃᑎᑐᑦ ᐊᐃ ᐃᒥᖅ ᐅᖃᓕᒫᒐᖅ ᓄᓇᕗᑦ",
    "Tifinagh": "ⴰⵣⵓⵍ ⵜⴰⵎⴰⵣⵉⵖⵜ ⴰⵎⴰⵏ ⴰⴷⵍⵉⵙ",
    "Nko": "ߒߞߏ ߌ ߣߌ ߛߐ߲߬ߜߐ߫ ߖߌ ߟߍߙߊ",
}
PUNCTUATION = (".", "!", "?", ";", "…", "।", "。", "؟", "—", "”")
NUMBERS = ("7", "1984", "3.14", "12:45", "٤٢", "१२", "½", "x²", "№5", "２０２４", "-80 °C", "50%")
SYMBOLS = (
    "😀",
    "👩‍🚀",
    "🇫🇷",
    "☺️",
    "→",
    "€",
    "™",
    "ﬁn",
    "Ⅳ",
    "ｶﾞ",
    "㎏",
    "“q”",
    "\ufffd",
    "𝒳",
    "\u00ad",
)
SPACES = ("  ", "\t", "\n", "\u00a0", "\u3000", "\u200b", " \r\n ", "\u2003", "\u2581", "\x07")
TYPED = ("</s>", "<pad>", "<unk>", "<s>", "<0x41>", ">>fra<<", "<2fr>", "fra_Latn", "__fr__", "▁")


def probes() -> list[str]:
    """Return COUNT texts, the same in every run: a line of every script in every form."""
    chance = random.Random(0)
    lines = [text.split() for text in WORDS.values()]
    texts: list[str] = []
    while len(texts) < COUNT:
        words, form = lines[len(texts) % len(lines)], FORMS[len(texts) // len(lines) % len(FORMS)]
        chosen = [chance.choice(words) for _ in range(chance.randint(3, 8))]
        texts.append(form(chosen, chance))
    return texts


def plain(words: list[str], chance: random.Random) -> str:
    return " ".join(words) + chance.choice(PUNCTUATION)


def decomposed(words: list[str], chance: random.Random) -> str:
    return unicodedata.normalize("NFD", plain(words, chance))


def capital(words: list[str], chance: random.Random) -> str:
    return plain(words, chance).upper()


def joined(words: list[str], chance: random.Random) -> str:
    return "".join(words) + chance.choice(("-", "/", "", "_")).join(words)


def mixed(words: list[str], chance: random.Random) -> str:
    return f"{plain(words, chance)} {chance.choice(list(WORDS.values()))}"


def among(extras: tuple[str, ...]) -> Callable[[list[str], random.Random], str]:
    """Return a form that puts one of `extras` after every word, apart from it or not."""

    def form(words: list[str], chance: random.Random) -> str:
        return "".join(
            word + chance.choice(("", " ")) + chance.choice(extras) + chance.choice(("", " "))
            for word in words
        )

    return form


FORMS = (
    plain,
    decomposed,
    plain,
    among(NUMBERS),
    among(PUNCTUATION),
    mixed,
    among(SPACES),
    capital,
    among(SYMBOLS),
    among(TYPED),
    joined,
    decomposed,
)
