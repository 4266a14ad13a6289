/* reasons.c - compares the reasons of drops and errors, and adds up their records. */
#include "data/record/reasons.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* Returns the end of an id that begins at s: a word of 8 characters or more, digits among them, but not only digits. */
static const char *id_end(const char *s)
{
	const char *p = s;
	int digits = 0;

	while (isalnum((unsigned char)*p) || *p == '_' || *p == '-')
		digits += isdigit((unsigned char)*p++) != 0;
	return p - s >= 8 && digits && digits < p - s ? p : NULL;
}

/* Returns the end of a number (12.5, 0x1be2) that begins at s with a digit. */
static const char *number_end(const char *s)
{
	const char *p = s + 1;

	if (s[0] == '0' && *p == 'x')
		for (p++; isxdigit((unsigned char)*p);)
			p++;
	while (isdigit((unsigned char)*p) || (*p == '.' && isdigit((unsigned char)p[1])))
		p++;
	return p;
}

/* Cuts a text after n bytes, or before the character that it would divide. */
static void cut_reason(char *text, size_t n)
{
	while (n && ((unsigned char)text[n] & 0xC0) == 0x80)
		n--;
	text[n] = 0;
}

static void copy_reason(char text[VFM_REASON_TEXT], const char *why)
{
	size_t n = 0;

	for (; why[n] && n < VFM_REASON_TEXT - 1; n++)
		text[n] = iscntrl((unsigned char)why[n]) ? '?' : why[n];
	text[n] = why[n]; /* the first byte after it, for the cut */
	cut_reason(text, n);
}

/* Copies an error with "#" for numbers and "'...'" for names and ids. */
static void mask_reason(char text[VFM_REASON_TEXT], const char *why)
{
	char mask[VFM_REASON_TEXT + 8];
	size_t n = 0;

	for (const char *s = why, *end; *s && n < VFM_REASON_TEXT; s = end) {
		const char *quote = *s == '\'' ? strchr(s + 1, '\'') : NULL;
		bool begins = isalnum((unsigned char)*s) && (s == why || !isalnum((unsigned char)s[-1]));

		end = quote ? quote + 1 : begins ? id_end(s) : NULL;
		if (end) {
			memcpy(mask + n, "'...'", 5);
			n += 5;
		} else if (isdigit((unsigned char)*s)) {
			mask[n++] = '#';
			end = number_end(s);
		} else {
			mask[n++] = *s;
			end = s + 1;
		}
	}
	mask[n] = 0;
	copy_reason(text, mask);
}

int vfm_reasons_add(struct vfm_reasons *r, const char *why, bool is_error, int64_t n, double s)
{
	char text[VFM_REASON_TEXT], mask[VFM_REASON_TEXT] = "", other[VFM_REASON_TEXT];
	struct vfm_reason *x = r->v, *last = &r->v[VFM_REASONS - 1];

	if (is_error)
		mask_reason(mask, why);
	if (is_error && strlen(why) >= VFM_REASON_TEXT) /* the mask of a cut text may differ */
		memcpy(text, mask, sizeof(text));
	else
		copy_reason(text, why);
	for (; x < last && x->n; x++) {
		if (x->is_error != is_error)
			continue;
		if (is_error)
			mask_reason(other, x->text);
		if (!strcmp(x->text, text) || (is_error && !strcmp(other, mask)))
			break;
	}
	if (x == last)
		snprintf(text, sizeof(text), "others");
	else if (x->n && strcmp(x->text, text) != 0)
		memcpy(text, mask, sizeof(text));
	memcpy(x->text, text, sizeof(text));
	x->is_error = x == last ? x->is_error || is_error : is_error;
	x->n += n;
	x->s += s;
	return (int)(x - r->v);
}

void vfm_reasons_merge(struct vfm_reasons *r, const struct vfm_reasons *other)
{
	for (int i = 0; i < VFM_REASONS && other->v[i].n; i++)
		vfm_reasons_add(r, other->v[i].text, other->v[i].is_error, other->v[i].n, other->v[i].s);
}

const char *vfm_duration_text(char text[VFM_DURATION_TEXT], double s)
{
	if (s < 9999.95)
		snprintf(text, VFM_DURATION_TEXT, "%.1f s", s);
	else
		snprintf(text, VFM_DURATION_TEXT, "%.2f h", s / 3600);
	return text;
}
