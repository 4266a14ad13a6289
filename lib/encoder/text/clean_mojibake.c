/* Mojibake: UTF-8 that was decoded as Latin-1 or Windows-1252.
 *
 * The rules that tell it from intended text, and the order of the repairs, are those of ftfy 6.3 (Speer 2019), for the
 * characters that these two encodings have.  A text looks bad if two or three neighbours are unlikely beside each
 * other: an accented letter before a currency sign, for example. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "encoder/text/clean_impl.h"

/* The classes of characters, from the table of ftfy.badness. */
enum {
	COMMON = 1 << 0, /* in many contexts: no-break space, dashes */
	CONTROL = 1 << 1,
	BAD = 1 << 2, /* hardly used but in mojibake */
	LAW = 1 << 3,
	CURRENCY = 1 << 4,
	START = 1 << 5, /* punctuation that begins something */
	END = 1 << 6,
	NUMERIC = 1 << 7,
	UPPER = 1 << 8, /* accented letters */
	LOWER = 1 << 9,
	LETTER = 1 << 10, /* letters that end words */
	ACCENTED = UPPER | LOWER,
	SIGNS = START | END | CURRENCY | NUMERIC | LAW,
};

/* The characters of bytes 0x80 to 0x9f in Windows-1252; unassigned bytes stay. */
static const uint16_t cp1252[32] = {0x20ac, 0x81, 0x201a, 0x192, 0x201e, 0x2026, 0x2020, 0x2021, 0x2c6, 0x2030, 0x160,
	0x2039, 0x152, 0x8d, 0x17d, 0x8f, 0x90, 0x2018, 0x2019, 0x201c, 0x201d, 0x2022, 0x2013, 0x2014, 0x2dc, 0x2122,
	0x161, 0x203a, 0x153, 0x9d, 0x17e, 0x178};

int32_t clean_from_cp1252(uint8_t byte)
{
	return byte >= 0x80 && byte <= 0x9f ? cp1252[byte - 0x80] : byte;
}

/* Returns the byte of a character in Windows-1252, or -1.  Bytes without a character stay; U+FFFD is 0x1a. */
static int to_cp1252(int32_t c)
{
	if (c == 0xfffd)
		return 0x1a;
	if (c == 0x1a)
		return -1;
	if (c < 0x80 || (c >= 0xa0 && c <= 0xff))
		return c;
	for (int i = 0; i < 32; i++)
		if (cp1252[i] == c)
			return 0x80 + i;
	return -1;
}

/* Classes of the bytes 0x80 to 0x9f of Windows-1252. */
static const uint16_t low_class[32] = {CURRENCY, CONTROL, START, BAD, START, COMMON, BAD, BAD, BAD, BAD, UPPER, START,
	UPPER, CONTROL, UPPER, CONTROL, CONTROL, START, COMMON, START, END, START, COMMON, COMMON, BAD, END, LOWER, END,
	LOWER, CONTROL, LOWER, UPPER};
/* Classes of U+00A0 to U+00BF. */
static const uint16_t sign_class[32] = {COMMON, START, CURRENCY, CURRENCY, BAD, CURRENCY, BAD, LAW, BAD, START, BAD,
	START, BAD, COMMON, END, BAD, 0, NUMERIC, NUMERIC, NUMERIC, COMMON, NUMERIC, LAW, COMMON, BAD, NUMERIC, BAD,
	END, NUMERIC, NUMERIC, NUMERIC, START};

static unsigned class_of(int32_t c)
{
	if (c < 0x80)
		return 0;
	if (c <= 0x9f)
		return CONTROL;
	if (c <= 0xbf)
		return sign_class[c - 0xa0];
	if (c <= 0xff) {
		if (c == 0xd7 || c == 0xf7)
			return NUMERIC;
		if (c <= 0xd1 || c == 0xd8 || c == 0xdc || c == 0xdd)
			return UPPER;
		return c == 0xde ? LETTER : c == 0xdf || (c >= 0xe0 && c <= 0xf1) || c == 0xfc ? LOWER : 0;
	}
	if (c == 0xfffd)
		return BAD;
	for (int i = 0; i < 32; i++)
		if (cp1252[i] == c)
			return low_class[i];
	return 0;
}

static bool is_one_of(int32_t c, const int32_t *set)
{
	for (; *set; set++)
		if (*set == c)
			return true;
	return false;
}

static bool is_lower_ascii(int32_t c)
{
	return c >= 'a' && c <= 'z';
}

static bool is_ascii_letter(int32_t c)
{
	return c < 0x80 && is_lower_ascii(c | 0x20);
}

/* Whether classes a and b are unlikely beside each other. */
static bool is_bad_pair(unsigned a, unsigned b)
{
	return ((a & (BAD | ACCENTED | SIGNS)) && (b & BAD)) || ((a & BAD) && (b & (ACCENTED | SIGNS))) ||
		((a & (LOWER | END | CURRENCY | NUMERIC)) && (b & UPPER)) ||
		((a & (END | CURRENCY | NUMERIC)) && (b & LOWER)) || ((a & (LOWER | END)) && (b & CURRENCY)) ||
		((a & UPPER) && (b & (NUMERIC | LAW))) || ((a & (CURRENCY | NUMERIC)) && (b & START));
}

/* Pairs of single characters that occur in mojibake of Windows-1252 and MacRoman. */
static bool is_known_pair(int32_t a, int32_t b)
{
	static const int32_t lead[] = {0xc2, 0xc3, 0xce, 0xd0, 0},
			     follow[] = {0x20ac, 0x153, 0x160, 0x161, 0xa2, 0xa3, 0x178, 0x17e, 0xa0, 0xad, 0xae, 0xa9,
				     0xb0, 0xb7, 0xbb, 0x2013, 0x2014, 0xb4, 0},
			     indic[] = {0xb2, 0xb5, 0xb9, 0xbc, 0xbd, 0xbe, 0};

	if (is_one_of(a, lead) && (is_one_of(b, follow) || class_of(b) & (START | END)))
		return true;
	return (a == 0xd7 && (b == 0xb2 || b == 0xb3)) || (a == 0xe0 && is_one_of(b, indic)) ||
		(a == 0xc3 && (b == 0xa0 || b == 0xa1)) || ((a == 0x152 || a == 0x153) && !is_ascii_letter(b)) ||
		(b == 0xb0 && class_of(a) & UPPER);
}

/* Whether c is one of the second characters of Arabic letters in mojibake. */
static bool is_arabic_second(int32_t c)
{
	static const int32_t more[] = {0x178, 0x160, 0xae, 0xb0, 0xb5, 0xbb, 0};

	return is_one_of(c, more) || class_of(c) & (COMMON | CURRENCY | BAD | NUMERIC | START);
}

/* Whether the characters at c[0] (n of them; `first`: they begin the text) are unlikely. */
static bool is_bad_here(const int32_t *c, size_t n, bool first)
{
	static const int32_t mac3[] = {0xec, 0xee, 0xef, 0xf2, 0xf4, 0xfa, 0xf9, 0xfb, 0x2020, 0xb0, 0xa2, 0x3c0, 0},
			     mac2[] = {0xe0, 0xe4, 0xb0, 0xea, 0};
	unsigned k0 = class_of(c[0]), k1, k2;
	size_t s;

	if (k0 & CONTROL)
		return true;
	if (n < 2)
		return false;
	if (first && (c[0] == 0xc2 || c[0] == 0xc3) && c[1] == ' ')
		return true;
	k1 = class_of(c[1]);
	if (is_bad_pair(k0, k1) || is_known_pair(c[0], c[1]))
		return true;
	if (n < 3)
		return false;
	k2 = class_of(c[2]);
	if ((is_ascii_letter(c[0]) && (k1 & LETTER) && (k2 & BAD)) ||
		(clean_is_space(c[0]) && (k1 & UPPER) && (k2 & CURRENCY)) ||
		((k0 & (ACCENTED | CURRENCY | END)) && (k1 & START) && (k2 & NUMERIC)) ||
		((k0 & (ACCENTED | CURRENCY | NUMERIC | LAW)) && (k1 & END) && (k2 & START)) ||
		(is_lower_ascii(c[0]) && (k1 & UPPER) && (k2 & (START | CURRENCY))) ||
		((k0 & ACCENTED) && (k1 & (START | END)) && clean_is_word(c[2])))
		return true;
	if (c[0] == 0x201a &&
		((c[1] == 0xc4 && is_one_of(c[2], mac3)) || ((c[1] == 0xe2 || c[1] == 0xf3) && is_one_of(c[2], mac2))))
		return true;
	if ((is_lower_ascii(c[0]) || is_one_of(c[0], (const int32_t[]){'.', ',', '?', '!', 0}) || k0 & END) &&
		c[1] == 0xc2 && (c[2] == ' ' || k2 & (START | END)))
		return true;
	s = clean_is_space(c[1]) ? 2 : 1;
	if (is_lower_ascii(c[0]) && s + 1 < n && (c[s] == 0xc2 || c[s] == 0xc3) && c[s + 1] == ' ')
		return true;
	return n >= 4 && (c[0] == 0xd8 || c[0] == 0xd9) && is_arabic_second(c[1]) && (c[2] == 0xd8 || c[2] == 0xd9) &&
		is_arabic_second(c[3]);
}

static bool looks_bad(const int32_t *c, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (is_bad_here(c + i, n - i, i == 0))
			return true;
	return false;
}

/* ---- bytes ---- */

static bool is_cont(int b)
{
	return b >= 0x80 && b <= 0xbf;
}

/* A continuation byte that a space may stand beside: not 0x85, whose character is an ellipsis, nor 0xa0. */
static bool is_cont_beside_space(int b)
{
	return is_cont(b) && b != 0x85 && b != 0xa0;
}

/* Returns the bytes at b that would be UTF-8 if their space were 0xa0; 0: none. */
static size_t altered_length(const uint8_t *b, size_t n)
{
	if (n >= 2 && memchr("\xc2\xc3\xc5\xce\xd0\xd9", b[0], 6) && b[1] == ' ')
		return 2;
	if (n >= 3 && (b[0] == 0xe2 || b[0] == 0xe3) && b[1] == ' ' && is_cont_beside_space(b[2]))
		return 3;
	if (n >= 3 && b[0] >= 0xe0 && b[0] <= 0xe3 && is_cont_beside_space(b[1]) && b[2] == ' ')
		return 3;
	if (n >= 4 && b[0] == 0xf0) {
		int spaces = (b[1] == ' ') + (b[2] == ' ') + (b[3] == ' ');

		if (spaces == 1 && (b[1] == ' ' || is_cont(b[1])) && (b[2] == ' ' || is_cont(b[2])) &&
			(b[3] == ' ' || is_cont(b[3])))
			return 4;
	}
	return 0;
}

/* Whether a word "à" stands at b, of which the no-break space became a space. */
static bool is_a_grave(const uint8_t *b, size_t n)
{
	static const char *const joined[] = {" ", "quele", "quela", "quilo", "s "};

	if (n < 2 || b[0] != 0xc3 || b[1] != ' ')
		return false;
	for (size_t i = 0; i < sizeof(joined) / sizeof(*joined); i++) {
		size_t len = strlen(joined[i]);

		if (n - 2 >= len && !memcmp(b + 2, joined[i], len))
			return false;
	}
	return true;
}

/* Puts back bytes 0xa0 that became spaces. */
static void restore_a0(struct vfm_buf *b, struct vfm_buf *tmp)
{
	const uint8_t *p = (const uint8_t *)b->data;
	struct vfm_buf swap;

	vfm_buf_clear(tmp);
	for (size_t i = 0; i < b->len; i++) {
		vfm_buf_add(tmp, p + i, 1);
		if (is_a_grave(p + i, b->len - i))
			vfm_buf_add(tmp, "\xa0", 1);
	}
	for (size_t i = 0, n; i < tmp->len; i += n ? n : 1) {
		n = altered_length((const uint8_t *)tmp->data + i, tmp->len - i);
		for (size_t k = 0; k < n; k++)
			if (tmp->data[i + k] == ' ')
				tmp->data[i + k] = (char)0xa0;
	}
	swap = *b;
	*b = *tmp;
	*tmp = swap;
}

static bool is_lost(int b, bool question)
{
	return b == 0x1a || (question && b == '?');
}

/* Returns the bytes of a sequence at b that is UTF-8 but for a lost byte (0x1a, or one '?'); 0: none. */
static size_t lossy_length(const uint8_t *b, size_t n)
{
	int lead = b[0], tail = lead >= 0xe0 && lead <= 0xef ? 2 : lead >= 0xf0 && lead <= 0xf4 ? 3 : 0;

	if (n >= 2 &&
		((lead >= 0xc2 && lead <= 0xdf && b[1] == 0x1a) || ((lead == 0xc2 || lead == 0xc3) && b[1] == '?')))
		return 2;
	if (n >= 6 && lead == 0xed && b[3] == 0xed) {
		bool low = b[4] >= 0xb0 && b[4] <= 0xbf;
		bool high = b[1] >= 0xa0 && b[1] <= 0xaf;

		if (high && low &&
			((is_lost(b[2], true) && (is_lost(b[5], true) || is_cont(b[5]))) ||
				(is_cont(b[2]) && is_lost(b[5], true))))
			return 6;
	}
	if (tail && n > (size_t)tail) {
		int lost = 0, questions = 0, fit = 0;

		for (int i = 1; i <= tail; i++) {
			lost += is_lost(b[i], true);
			questions += b[i] == '?';
			fit += is_cont(b[i]) || is_lost(b[i], true);
		}
		if (fit == tail && lost > 0 && questions <= 1)
			return (size_t)tail + 1;
	}
	return lead == 0x1a ? 1 : 0;
}

static void replace_lossy(struct vfm_buf *b, struct vfm_buf *tmp)
{
	struct vfm_buf swap;

	vfm_buf_clear(tmp);
	for (size_t i = 0, n; i < b->len; i += n) {
		n = lossy_length((const uint8_t *)b->data + i, b->len - i);
		if (n) {
			vfm_buf_add(tmp, "\xef\xbf\xbd", 3);
		} else {
			vfm_buf_add(tmp, b->data + i, 1);
			n = 1;
		}
	}
	swap = *b;
	*b = *tmp;
	*tmp = swap;
}

/* Reads a character of UTF-8, CESU-8 (a surrogate pair of three bytes each) or Java's NUL (C0 80).  Returns its bytes,
 * 0: not valid. */
static size_t read_utf8(const uint8_t *b, size_t n, int32_t *c)
{
	static const int32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
	size_t len = b[0] < 0x80 ? 1 : b[0] >= 0xc2 && b[0] <= 0xdf ? 2 : b[0] >= 0xe0 && b[0] <= 0xef ? 3 : 4;

	if (n >= 2 && b[0] == 0xc0 && b[1] == 0x80) {
		*c = 0;
		return 2;
	}
	if (n >= 6 && b[0] == 0xed && b[1] >= 0xa0 && b[1] <= 0xaf && is_cont(b[2]) && b[3] == 0xed && b[4] >= 0xb0 &&
		b[4] <= 0xbf && is_cont(b[5])) {
		*c = 0x10000 + ((b[1] & 0xf) << 16) + ((b[2] & 0x3f) << 10) + ((b[4] & 0xf) << 6) + (b[5] & 0x3f);
		return 6;
	}
	if (len > n || (len == 4 && (b[0] < 0xf0 || b[0] > 0xf4)))
		return 0;
	*c = len == 1 ? b[0] : b[0] & (0x7f >> len);
	for (size_t i = 1; i < len; i++) {
		if (!is_cont(b[i]))
			return 0;
		*c = *c << 6 | (b[i] & 0x3f);
	}
	return *c < least[len] || *c > 0x10ffff || (*c >= 0xd800 && *c <= 0xdfff) ? 0 : len;
}

static bool decode_utf8(const struct vfm_buf *b, struct clean_text *out)
{
	int32_t c;

	out->n = 0;
	for (size_t i = 0, n; i < b->len; i += n) {
		n = read_utf8((const uint8_t *)b->data + i, b->len - i, &c);
		if (!n)
			return false;
		clean_put(out, c);
	}
	return true;
}

/* ---- repairs ---- */

enum charset { LATIN1, CP1252 };

/* Encodes characters; returns whether the charset has all of them. */
static bool encode_text_as(enum charset set, const int32_t *c, size_t n, struct vfm_buf *out)
{
	vfm_buf_clear(out);
	for (size_t i = 0; i < n; i++) {
		int b = set == CP1252 ? to_cp1252(c[i]) : c[i] <= 0xff ? c[i] : -1;
		uint8_t byte = (uint8_t)b;

		if (b < 0)
			return false;
		vfm_buf_add(out, &byte, 1);
	}
	return true;
}

/* Decodes a whole text as UTF-8 of the bytes that it is in a charset. */
static bool redecode(enum charset set, const int32_t *c, size_t n, struct vfm_buf b[2], struct clean_text *out)
{
	if (!encode_text_as(set, c, n, &b[0]))
		return false;
	restore_a0(&b[0], &b[1]);
	if (set == CP1252)
		replace_lossy(&b[0], &b[1]);
	return decode_utf8(&b[0], out);
}

/* Whether c may stand for a continuation byte; strict: and for hardly anything else. */
static bool is_continuation(int32_t c, bool strict)
{
	int b = c == 0xfffd || c == 0x1a ? -1 : to_cp1252(c);

	if ((c >= 0x80 && c <= 0xbf) || c == 0xc6 || c == 0xd8 || c == 0xe6 ||
		c == 0xf8) /* the letters: in Windows-1257 */
		return true;
	if (!strict && c == ' ')
		return true;
	if (b < 0x80 || b > 0x9f)
		return false;
	return !strict || !(class_of(c) & (START | END | COMMON)) || c == 0x2039 || c == 0x203a || c == 0x2122;
}

/* Returns the characters of one sequence at c that looks like UTF-8, 0: none. */
static size_t sequence_length(const int32_t *c, size_t n)
{
	size_t tail = (c[0] >= 0xc2 && c[0] <= 0xdf) || c[0] == 0x160 || c[0] == 0x17d ? 1
		: c[0] >= 0xe0 && c[0] <= 0xef                                         ? 2
		: c[0] == 0xf0 || c[0] == 0xf3 || c[0] == 0x161                        ? 3
										       : 0;

	if (!tail || tail >= n)
		return 0;
	for (size_t i = 1; i <= tail; i++)
		if (!is_continuation(c[i], false))
			return 0;
	return tail + 1;
}

/* Repairs the parts of a text that look like UTF-8 and bad; returns whether one changed. */
static bool fix_parts(const int32_t *c, size_t n, struct clean_text *out)
{
	bool changed = false;

	out->n = 0;
	for (size_t i = 0, end, len; i < n; i = end) {
		end = i;
		if (i == 0 || !is_continuation(c[i - 1], true))
			while (end < n && (len = sequence_length(c + end, n - end)))
				end += len;
		if (end > i && end - i < n && looks_bad(c + i, end - i)) {
			struct clean_text part = {0}, in = {0};

			clean_add(&in, c + i, end - i);
			clean_mojibake(&in, &part);
			changed |= !clean_equal(&in, &part);
			clean_add(out, part.c, part.n);
			free(in.c);
			free(part.c);
		} else {
			end = end > i ? end : i + 1;
			clean_add(out, c + i, end - i);
		}
	}
	return changed;
}

/* One repair; returns whether *out is another text. */
static bool fix_step(const int32_t *c, size_t n, struct vfm_buf b[2], struct clean_text *out)
{
	bool control = false;

	if (!looks_bad(c, n))
		return false;
	for (enum charset set = LATIN1; set <= CP1252; set++)
		if (redecode(set, c, n, b, out))
			return true;
	if (fix_parts(c, n, out))
		return true;
	/* C1 controls were meant to be Windows-1252. */
	for (size_t i = 0; i < n && !control; i++)
		control = c[i] >= 0x80 && c[i] <= 0x9f;
	if (!control)
		return false;
	out->n = 0;
	for (size_t i = 0; i < n; i++)
		clean_put(out, c[i] >= 0x80 && c[i] <= 0x9f ? clean_from_cp1252((uint8_t)c[i]) : c[i]);
	return true;
}

void clean_mojibake(const struct clean_text *in, struct clean_text *out)
{
	struct vfm_buf b[2] = {{0}, {0}};
	struct clean_text next = {0};

	out->n = 0;
	clean_add(out, in->c, in->n);
	while (fix_step(out->c, out->n, b, &next) && !clean_equal(out, &next)) {
		struct clean_text t = *out;

		*out = next;
		next = t;
	}
	free(next.c);
	vfm_buf_release(&b[0]);
	vfm_buf_release(&b[1]);
}
