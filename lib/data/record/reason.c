#include "data/record/reason.h"

#include <ctype.h>
#include <string.h>

/* Returns the end of an id that begins at s: a word of 8 characters or more, of which some are digits and others not.
 */
static const char *id_end(const char *s, const char *end)
{
	const char *p = s;
	int digits = 0;

	while (p < end && (isalnum((unsigned char)*p) || *p == '_' || *p == '-'))
		digits += isdigit((unsigned char)*p++) != 0;
	return p - s >= 8 && digits && digits < p - s ? p : NULL;
}

void vfm_reason_mask(char *text, size_t size, const char *why, size_t len)
{
	const char *end = why + len, *s = why, *quote;
	size_t n = 0;

	for (; s < end && n + 6 < size; s++) {
		quote = *s == '\'' ? memchr(s + 1, '\'', (size_t)(end - s - 1)) : NULL;
		if (!quote && isalnum((unsigned char)*s) && (s == why || !isalnum((unsigned char)s[-1]))) {
			quote = id_end(s, end);
			quote = quote ? quote - 1 : NULL; /* its last character */
		}
		if (quote) {
			memcpy(text + n, "'...'", 5);
			n += 5;
			s = quote;
		} else if (isdigit((unsigned char)*s)) {
			text[n++] = '#';
			while (s + 1 < end &&
				(isdigit((unsigned char)s[1]) ||
					(s[1] == '.' && s + 2 < end && isdigit((unsigned char)s[2]))))
				s++;
		} else {
			text[n++] = *s;
		}
	}
	while (s < end && n && ((unsigned char)text[n - 1] & 0x80))
		n--;
	text[n] = 0;
}
