/* jpeg.c - see jpeg.h. */
#include <string.h>
#include <unistd.h>

#include "media/av/jpeg.h"

#define MAX_SEGMENTS 1024 /* before the coded picture; a profile or an extended XMP takes many */

enum { SOI = 0xd8, SOS = 0xda, APP2 = 0xe2 };

bool vfm_jpeg_has_index(int fd, int64_t start, int64_t size)
{
	uint8_t head[8]; /* a marker, the length of its segment and of this field, the first bytes of its content */
	int64_t at = 2;

	if (size < 2 || pread(fd, head, 2, start) != 2 || head[0] != 0xff || head[1] != SOI)
		return false;
	for (int i = 0; i < MAX_SEGMENTS && size - at >= (int64_t)sizeof(head); i++) {
		if (pread(fd, head, sizeof(head), start + at) != (ssize_t)sizeof(head) || head[0] != 0xff)
			return false;
		if (head[1] == 0xff) { /* a fill byte */
			at++;
			continue;
		}
		if (head[1] == SOS)
			return false;
		if (head[1] == APP2 && !memcmp(head + 4, "MPF", 4))
			return true;
		at += 2 + (head[2] << 8 | head[3]);
	}
	return false;
}
