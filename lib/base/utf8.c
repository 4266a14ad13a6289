/* utf8.c - counts the bytes that do not continue a character. */
#include "base/utf8.h"

#include <stdbool.h>

static bool begins_character(char c)
{
	return ((unsigned char)c & 0xc0) != 0x80;
}

int vfm_utf8_width(const char *s, size_t n)
{
	int width = 0;

	for (size_t i = 0; i < n; i++)
		width += begins_character(s[i]);
	return width;
}

size_t vfm_utf8_cut(const char *s, int width)
{
	size_t n = 0;

	for (; s[n]; n++)
		if (begins_character(s[n]) && width-- == 0)
			break;
	return n;
}
