"""Sentences that a model reads where no texts of its own are given."""

from collections.abc import Callable, Mapping, Sequence

MOST = 128  # texts
ALIKE = 1.5  # in tokens a letter, and in mean ids, of languages that one vocabulary is made for
ENOUGH = 16  # texts
READABLE = 0.05  # largest share of unknown tokens in a built-in sentence

SENTENCES = {
    "English": (
        "The city council approved a new budget for public transport on Tuesday evening.",
        "Could you pass me the salt, please?",
        "My grandmother still bakes bread every Saturday morning.",
        "Heavy rain is expected along the coast until late Thursday.",
        "We met at a small café near the harbour in 2014.",
        "“I will call you as soon as the plane lands,” she said.",
        "Photosynthesis converts light energy into chemical energy stored in sugars.",
        "Have you ever tried to repair an old bicycle by yourself?",
        "Nobody noticed that the clock had stopped at half past three.",
        "After the meeting, Daniel walked home through the park with his dog.",
        "The museum's collection includes more than 12,000 maps and drawings.",
        "Please restart the computer before you install the update.",
        "It takes about 8 minutes for sunlight to reach the Earth.",
        "If the train is late again, I will miss my connection in Leeds.",
        "Farmers in the valley say the apple harvest was better than last year.",
        "Why did they close the library so early yesterday?",
        "Water boils at a lower temperature high up in the mountains.",
        "There are only two eggs left in the fridge, so let's order pizza.",
        "Her first novel was published on 3 May 1998 by a small press in Dublin.",
        "Don't forget to water the plants while we are away.",
        "According to the report, unemployment fell by 0.4 percent in the spring.",
        "A sparrow built its nest just above our kitchen window.",
        "The server returns an error when the request contains no text.",
        "What time does the last bus leave for the airport?",
        "Although he was tired, Ahmed stayed up to finish his homework.",
        "Three students from our school won a prize for their robot.",
        "Honestly, I liked the soup more than the main course.",
        "In winter, the lake freezes and the children go skating.",
        "Violins have four strings, which are usually tuned in fifths.",
        "Both teams played well, but the match ended without a goal.",
        "Let me know whether Friday or Monday suits you better.",
        "Engineers are testing a bridge made largely of recycled plastic.",
    ),
    "French": (
        "Le train de 8 h 15 a été supprimé à cause de la neige.",
        "Est-ce que tu peux acheter du pain en rentrant ce soir ?",
        "Ma voisine cultive des tomates et des courgettes sur son balcon.",
        "La nouvelle bibliothèque ouvrira ses portes au mois de septembre.",
    ),
    "German": (
        "Gestern Abend haben wir im Garten gegrillt und lange geredet.",
        "Könnten Sie mir bitte sagen, wo der Bahnhof ist?",
        "Der Rhein fließt durch mehrere Länder und mündet in die Nordsee.",
        "Wegen der Bauarbeiten bleibt die Brücke bis Montag gesperrt.",
    ),
    "Spanish": (
        "Mañana por la mañana iremos al mercado a comprar pescado.",
        "¿Sabes a qué hora empieza la película en el cine?",
        "Mi abuelo trabajó cuarenta años en una fábrica de zapatos.",
        "El ayuntamiento plantará doscientos árboles nuevos en el parque.",
    ),
    "Portuguese": (
        "A minha irmã mora em Coimbra e trabalha num hospital.",
        "Você sabe onde fica a padaria mais próxima?",
        "Choveu tanto ontem à noite que a rua ficou alagada.",
        "O museu reabre em março com uma exposição sobre o mar.",
    ),
    "Italian": (
        "Domani andiamo in montagna con gli amici di Marco.",
        "Scusi, a che ora parte il prossimo autobus per il centro?",
        "Mia nonna prepara la pasta fresca ogni domenica mattina.",
        "Il Po è il fiume più lungo d'Italia e nasce in Piemonte.",
    ),
    "Dutch": (
        "Vanochtend was er veel mist op de weg naar Utrecht.",
        "Heb je al gehoord dat Anna een nieuwe baan heeft?",
        "Op zaterdag drinken we altijd koffie bij mijn ouders.",
        "De gemeente legt dit jaar drie nieuwe fietspaden aan.",
    ),
    "Swedish": (
        "I går kväll åt vi middag hos min mormor.",
        "Vet du när nästa buss går till Göteborg?",
        "Barnen byggde en stor snögubbe på skolgården.",
        "Vänern är den största sjön i Sverige.",
    ),
    "Danish": (
        "I morges cyklede jeg på arbejde i regnvejr.",
        "Kan du huske, hvor vi parkerede bilen?",
        "Min lillebror går til svømning hver onsdag eftermiddag.",
        "Den nye bro mellem de to øer åbner til sommer.",
    ),
    "Norwegian": (
        "Vi gikk på ski i fjellet hele helgen.",
        "Vet du om butikken er åpen på søndager?",
        "Søsteren min studerer biologi ved universitetet i Bergen.",
        "Toget til Trondheim er forsinket på grunn av snø.",
    ),
    "Finnish": (
        "Juna Helsingistä Turkuun lähtee raiteelta kolme kello yhdeksän.",
        "Oletko jo ehtinyt lukea eilisen sanomalehden?",
        "Mummo leipoi pullaa, ja koko talo tuoksui kanelille.",
        "Järven pinta jäätyy yleensä vasta joulukuun alussa.",
    ),
    "Estonian": (
        "Täna hommikul sadas Tallinnas esimest korda lund.",
        "Kas sa saaksid mulle homme oma raamatut laenata?",
        "Vanaema keetis õunamoosi ja pani selle purkidesse.",
        "Buss number kaheksa peatub raamatukogu ja kooli vahel.",
    ),
    "Latvian": (
        "Šorīt Rīgā lija, bet pēcpusdienā uzspīdēja saule.",
        "Vai tu zini, cikos atveras pilsētas bibliotēka?",
        "Vecāmamma katru rudeni vāra ābolu ievārījumu.",
        "Bērni spēlēja futbolu pagalmā līdz pat vakaram.",
    ),
    "Lithuanian": (
        "Vakar su draugais ilgai vaikščiojome palei upę.",
        "Ar galėtumėte pasakyti, kur yra artimiausia vaistinė?",
        "Mano sesuo mokosi groti smuiku jau trejus metus.",
        "Traukinys į Kauną išvyksta dešimtą valandą ryto.",
    ),
    "Polish": (
        "Wczoraj wieczorem w całym mieście zabrakło prądu na dwie godziny.",
        "Czy mógłbyś kupić chleb i mleko w drodze do domu?",
        "Moja siostra uczy matematyki w szkole podstawowej.",
        "Wisła jest najdłuższą rzeką w Polsce i wpada do Morza Bałtyckiego.",
    ),
    "Czech": (
        "Zítra má být slunečno, ale odpoledne mohou přijít bouřky.",
        "Kolik stojí jízdenka z Prahy do Brna?",
        "Dědeček chodí každé ráno se psem na procházku do lesa.",
        "Nová výstava v muzeu potrvá až do konce října.",
    ),
    "Slovak": (
        "V sobotu sme boli na túre vo Vysokých Tatrách.",
        "Môžete mi, prosím, odporučiť dobrú reštauráciu v centre?",
        "Mama upiekla jablkový koláč pre celú rodinu.",
        "Nový most cez rieku otvoria začiatkom budúceho roka.",
    ),
    "Hungarian": (
        "A vonat húsz perc késéssel érkezett meg Budapestre.",
        "Meg tudná mondani, merre van a legközelebbi posta?",
        "Tegnap este a barátaimmal moziba mentünk.",
        "A gyerekek a kertben játszanak, mert végre süt a nap.",
    ),
    "Romanian": (
        "Mâine dimineață plecăm la munte cu trenul de ora șapte.",
        "Ai văzut unde am pus cheile de la mașină?",
        "Bunica face cele mai bune plăcinte cu mere din sat.",
        "Dunărea se varsă în Marea Neagră printr-o deltă întinsă.",
    ),
    "Croatian": (
        "Jučer smo cijeli dan proveli na plaži kraj Splita.",
        "Možete li mi reći kada polazi sljedeći autobus?",
        "Moj brat svira gitaru u malom sastavu iz Zagreba.",
        "Tržnica je otvorena svaki dan osim nedjelje.",
    ),
    "Slovenian": (
        "Včeraj smo se s kolesi peljali okoli Blejskega jezera.",
        "Ali mi lahko poveste, kje je železniška postaja?",
        "Na vrtu nam letos zelo dobro rastejo paradižniki.",
        "Knjižnica bo zaradi prenove zaprta do konca meseca.",
    ),
    "Albanian": (
        "Dje në mbrëmje dolëm për një shëtitje buzë detit.",
        "A mund të më thoni ku ndodhet stacioni i autobusit?",
        "Gjyshja ime gatuan byrek të shijshëm çdo të diel.",
        "Shkolla e re do të hapet në fillim të shtatorit.",
    ),
    "Turkish": (
        "Yarın sabah saat dokuzda okulun önünde buluşalım mı?",
        "Bu yıl bahçedeki kiraz ağaçları çok erken çiçek açtı.",
        "Kardeşim iki yıldır Ankara'da bir hastanede çalışıyor.",
        "Yağmur durunca çocuklar hemen sokağa çıkıp oynamaya başladı.",
    ),
    "Azerbaijani": (
        "Bu gün Bakıda hava günəşli və bir az küləklidir.",
        "Mənə deyə bilərsinizmi, ən yaxın metro stansiyası haradadır?",
        "Bacım universitetdə tarix və coğrafiya oxuyur.",
        "Axşam nənəm bizim üçün dadlı plov bişirdi.",
    ),
    "Indonesian": (
        "Kereta ke Bandung berangkat pukul tujuh pagi dari stasiun ini.",
        "Apakah kamu sudah makan siang bersama teman-temanmu?",
        "Harga beras di pasar naik sedikit sejak bulan lalu.",
        "Ibu menanam cabai dan tomat di halaman belakang rumah.",
    ),
    "Vietnamese": (
        "Sáng nay trời mưa to nên tôi đi làm muộn.",
        "Bạn có biết quán phở nào ngon ở gần đây không?",
        "Hà Nội là thủ đô của Việt Nam và nằm bên sông Hồng.",
        "Em gái tôi đang học lớp năm và rất thích vẽ tranh.",
    ),
    "Swahili": (
        "Watoto wanacheza mpira uwanjani baada ya masomo.",
        "Je, unaweza kunionyesha njia ya kwenda sokoni?",
        "Mlima Kilimanjaro ndio mlima mrefu kuliko yote barani Afrika.",
        "Jana jioni tulikula samaki na wali nyumbani kwa bibi.",
    ),
    "Afrikaans": (
        "Ons ry môreoggend vroeg see toe met die kinders.",
        "Weet jy dalk waar ek my bril neergesit het?",
        "Die winkel op die hoek verkoop vars brood en melk.",
        "Dit het gisteraand so hard gereën dat die rivier oorgeloop het.",
    ),
    "Catalan": (
        "Demà al matí anirem al mercat a comprar fruita fresca.",
        "Saps a quina hora tanca la biblioteca del barri?",
        "La meva àvia viu en un poble petit prop de Girona.",
        "El tren arribarà amb deu minuts de retard per la pluja.",
    ),
    "Welsh": (
        "Mae hi'n bwrw glaw yng Nghaerdydd y bore yma.",
        "Ydych chi'n gwybod ble mae'r orsaf drenau agosaf?",
        "Mae fy chwaer yn dysgu canu'r delyn yn yr ysgol.",
        "Aethon ni i lan y môr gyda'r plant ddydd Sadwrn.",
    ),
    "Icelandic": (
        "Í gær fórum við í sund þrátt fyrir rok og rigningu.",
        "Veistu hvenær næsti strætó fer niður í miðbæ?",
        "Amma prjónaði hlýja peysu handa litla bróður mínum.",
        "Reykjavík er höfuðborg Íslands og stærsta borg landsins.",
    ),
    "Russian": (
        "Вчера вечером мы долго гуляли по набережной и пили горячий чай.",
        "Вы не подскажете, как пройти к ближайшей станции метро?",
        "Моя бабушка каждое лето варит варенье из смородины.",
        "В 2019 году в нашем городе открыли новый музей.",
        "Если завтра будет дождь, экскурсию перенесут на воскресенье.",
        "Байкал считается самым глубоким озером в мире.",
        "Почему ты не сказал мне об этом раньше?",
        "Программа сохраняет настройки автоматически при каждом выходе.",
    ),
    "Ukrainian": (
        "Сьогодні вранці випав перший сніг, і діти дуже зраділи.",
        "Скажіть, будь ласка, о котрій годині відчиняється аптека?",
        "Мій брат працює інженером на великому заводі у Львові.",
        "Дніпро тече через Київ і впадає в Чорне море.",
    ),
    "Bulgarian": (
        "Утре ще пътуваме с влак от София до Пловдив.",
        "Знаете ли къде мога да купя пресни плодове?",
        "Сестра ми работи като лекарка в голяма болница.",
        "През пролетта градината зад къщата е пълна с цветя.",
    ),
    "Serbian": (
        "Синоћ смо гледали занимљив филм о старом Београду.",
        "Да ли знаш када почиње концерт на тргу?",
        "Мој деда сваког јутра чита новине уз кафу.",
        "Продавница је затворена због пописа до понедељка.",
    ),
    "Macedonian": (
        "Вчера попладне се шетавме покрај Охридското Езеро.",
        "Можете ли да ми кажете каде е најблиската пошта?",
        "Мајка ми готви тавче гравче секој петок.",
        "Новиот автобус оди од центарот до аеродромот за триесет минути.",
    ),
    "Greek": (
        "Χθες το βράδυ φάγαμε ψάρι σε μια ταβέρνα δίπλα στη θάλασσα.",
        "Μήπως ξέρετε πότε φεύγει το επόμενο πλοίο για την Πάρο;",
        "Η αδελφή μου σπουδάζει αρχιτεκτονική στη Θεσσαλονίκη.",
        "Το μουσείο μένει ανοιχτό μέχρι τις οκτώ κάθε Παρασκευή.",
    ),
    "Armenian": (
        "Այսօր առավոտյան Երևանում արևոտ և տաք եղանակ է։",
        "Կարո՞ղ եք ինձ ասել, թե որտեղ է գրադարանը։",
        "Տատիկս ամեն կիրակի համեղ կարկանդակ է թխում։",
        "Երեխաները դպրոցից հետո ֆուտբոլ են խաղում բակում։",
    ),
    "Georgian": (
        "დღეს დილით თბილისში ძლიერი წვიმა მოვიდა.",
        "ხომ ვერ მეტყვით, სად არის უახლოესი აფთიაქი?",
        "ჩემი და უნივერსიტეტში ისტორიას სწავლობს და ბევრს კითხულობს.",
        "ბებიამ საღამოს ოჯახისთვის გემრიელი ხაჭაპური გამოაცხო.",
    ),
    "Hebrew": (
        "אתמול בערב הלכנו לטייל לאורך חוף הים.",
        "האם אתה יודע מתי יוצאת הרכבת הבאה לחיפה?",
        "אחותי הקטנה לומדת לנגן בפסנתר כבר שנתיים.",
        "המוזיאון החדש ייפתח לקהל בתחילת החודש הבא.",
    ),
    "Arabic": (
        "ذهبنا أمس إلى السوق واشترينا خضارا وفواكه طازجة.",
        "هل يمكنك أن تخبرني أين تقع محطة القطار؟",
        "يدرس أخي الهندسة في جامعة القاهرة منذ ثلاث سنوات.",
        "سيكون الطقس غدا مشمسا مع رياح خفيفة.",
    ),
    "Persian": (
        "امروز صبح در تهران باران شدیدی بارید.",
        "آیا می‌دانید نزدیک‌ترین داروخانه در این خیابان کجاست؟",
        "مادربزرگم هر جمعه برای ما آش خوشمزه‌ای می‌پزد.",
        "برادرم در دانشگاه شیراز ریاضی درس می‌خواند.",
    ),
    "Urdu": (
        "آج صبح لاہور میں ہلکی بارش ہوئی اور موسم خوشگوار ہو گیا۔",
        "کیا آپ بتا سکتے ہیں کہ ڈاک خانہ کہاں ہے؟",
        "میری بہن ایک سکول میں بچوں کو سائنس پڑھاتی ہے۔",
        "ہم نے شام کو گھر کے صحن میں بیٹھ کر چائے پی۔",
    ),
    "Hindi": (
        "कल शाम हम सब मिलकर गंगा के किनारे घूमने गए।",
        "क्या आप बता सकते हैं कि अगली ट्रेन कब आएगी?",
        "मेरी दादी हर सुबह बगीचे में पौधों को पानी देती हैं।",
        "इस साल गाँव में गेहूँ की फसल बहुत अच्छी हुई है।",
    ),
    "Bengali": (
        "আজ সকালে কলকাতায় অনেকক্ষণ ধরে বৃষ্টি হয়েছে।",
        "আপনি কি জানেন, কাছের ডাকঘরটা কোথায়?",
        "আমার ছোট ভাই প্রতিদিন বিকেলে মাঠে ফুটবল খেলে।",
        "মা দুপুরে আমাদের জন্য মাছ আর ভাত রান্না করেছেন।",
    ),
    "Gujarati": (
        "આજે સવારે અમે બધા બગીચામાં ફરવા ગયા હતા.",
        "શું તમે મને કહી શકો કે બસ ક્યારે આવશે?",
        "મારી બહેન અમદાવાદની એક શાળામાં ગણિત ભણાવે છે.",
        "દાદીમા દર રવિવારે અમને નવી વાર્તા સંભળાવે છે.",
    ),
    "Tamil": (
        "இன்று காலை சென்னையில் நல்ல மழை பெய்தது.",
        "அடுத்த பேருந்து எத்தனை மணிக்கு வரும் என்று தெரியுமா?",
        "என் தங்கை பள்ளியில் இசையும் நடனமும் கற்றுக்கொள்கிறாள்.",
        "பாட்டி எங்களுக்காக வீட்டில் சுவையான தோசை செய்தார்.",
    ),
    "Telugu": (
        "ఈ రోజు ఉదయం హైదరాబాద్‌లో బాగా వర్షం పడింది.",
        "తరువాతి రైలు ఎన్ని గంటలకు వస్తుందో మీకు తెలుసా?",
        "మా అమ్మ ప్రతి ఆదివారం మా కోసం పులిహోర చేస్తుంది.",
        "పిల్లలు సాయంత్రం పార్కులో చాలా సేపు ఆడుకున్నారు.",
    ),
    "Malayalam": (
        "ഇന്ന് രാവിലെ മുതൽ കൊച്ചിയിൽ നല്ല മഴയാണ്.",
        "അടുത്ത ബസ് എപ്പോൾ വരുമെന്ന് നിങ്ങൾക്ക് അറിയാമോ?",
        "എന്റെ അനിയത്തി ഒരു പുതിയ പുസ്തകം വായിക്കുകയാണ്.",
        "മുത്തശ്ശി എല്ലാ ദിവസവും വൈകുന്നേരം നടക്കാൻ പോകും.",
    ),
    "Sinhala": (
        "අද උදේ කොළඹ නගරයට තද වැස්සක් ඇද හැළුණි.",
        "ළඟම ඇති දුම්රිය ස්ථානය කොහේද කියා ඔබ දන්නවාද?",
        "මගේ නංගී පාසලේ චිත්‍ර ඇඳීමට ඉතා කැමතියි.",
        "අම්මා රාත්‍රී කෑමට බත් සහ පරිප්පු උයනවා.",
    ),
    "Thai": (
        "เมื่อวานฝนตกหนักทั้งวันที่เชียงใหม่",
        "คุณรู้ไหมว่าร้านกาแฟเปิดกี่โมง",
        "แม่ทำแกงเขียวหวานให้เรากินตอนเย็น",
        "น้องสาวของฉันชอบอ่านหนังสือมาก",
    ),
    "Lao": (
        "ມື້ນີ້ອາກາດດີຫຼາຍຢູ່ວຽງຈັນ",
        "ເຈົ້າຮູ້ບໍ່ວ່າຕະຫຼາດຢູ່ໃສ?",
        "ແມ່ໜຶ້ງເຂົ້າໜຽວທຸກໆເຊົ້າ",
        "ເດັກນ້ອຍຫຼິ້ນບານຢູ່ໂຮງຮຽນ",
    ),
    "Burmese": (
        "ဒီနေ့ ရန်ကုန်မှာ မိုးရွာနေတယ်။",
        "ဈေးက ဘယ်အချိန်မှာ ဖွင့်မလဲ။",
        "ကျွန်တော့်ညီမက စာဖတ်ရတာ ကြိုက်တယ်။",
        "အမေက မနက်တိုင်း လမ်းလျှောက်တယ်။",
    ),
    "Khmer": (
        "ថ្ងៃនេះ មេឃភ្លៀងខ្លាំងនៅភ្នំពេញ។",
        "តើផ្សារដែលនៅជិតបំផុតនៅឯណា?",
        "ប្អូនស្រីខ្ញុំចូលចិត្តអានសៀវភៅ។",
        "ម្ដាយខ្ញុំធ្វើម្ហូបឆ្ងាញ់ណាស់។",
    ),
    "Amharic": (
        "ዛሬ ጠዋት በአዲስ አበባ ከባድ ዝናብ ዘነበ።",
        "በአቅራቢያው ያለው መድኃኒት ቤት የት እንደሆነ ያውቃሉ?",
        "እህቴ በትምህርት ቤት ሒሳብና ሳይንስ ታስተምራለች።",
        "ልጆቹ ከትምህርት በኋላ በሜዳው ላይ ኳስ ይጫወታሉ።",
    ),
    "Korean": (
        "오늘 아침에는 비가 와서 버스가 조금 늦게 왔어요.",
        "혹시 이 근처에 조용한 카페가 있는지 아세요?",
        "제 동생은 부산에 있는 대학교에서 역사를 공부합니다.",
        "주말마다 가족과 함께 가까운 산에 올라갑니다.",
    ),
    "Japanese": (
        "今朝は雨が降っていたので、バスで会社に行きました。",
        "この近くにおいしいパン屋はありますか。",
        "妹は京都の大学で歴史を勉強しています。",
        "来月の三日に、新しい図書館が開館します。",
    ),
    "Chinese": (
        "今天早上下了一场大雨，路上堵车很严重。",
        "请问，去火车站应该坐几路公交车？",
        "我妹妹在北京的一所小学教音乐。",
        "周末我们打算去公园放风筝。",
    ),
    "Kazakh": (
        "Бүгін таңертең Алматыда алғашқы қар жауды.",
        "Кешіріңіз, ең жақын дәріхана қай жерде екенін білесіз бе?",
        "Менің әпкем мектепте қазақ тілінен сабақ береді.",
        "Кешке әжем бізге дәмді бауырсақ пісіріп берді.",
    ),
}


def readable(
    encode: Callable[[str], list[int]],
    unknown: Callable[[Sequence[int]], float],
    texts: Mapping[str, Sequence[str]],
) -> list[list[int]]:
    """Return the ids of those texts of each language that have a small share of `unknown` tokens.

    First come those of the languages that the vocabulary was made for: they need the fewest tokens
    a letter, and the first tokens of it. Others follow only if these have fewer than ENOUGH.
    """
    found: list[tuple[float, float, list[list[int]]]] = []
    for own in texts.values():
        rows = [encode(text) for text in own]
        known = [ids for ids in rows if ids and unknown(ids) <= READABLE]
        if 2 * len(known) > len(rows):
            count, letters = sum(map(len, rows)), sum(map(len, own))
            found.append((round(count / letters, 2), sum(map(sum, rows)) / count, known))
    found.sort()
    ranked: list[list[int]] = []
    for tokens, mean_id, rows in found:
        alike = tokens <= ALIKE * found[0][0] and mean_id <= ALIKE * found[0][1]
        if alike or len(ranked) < ENOUGH:
            ranked += rows
    return ranked[:MOST]
