/* ts.c - reads the packets of the file once, and checks sync bytes and PES headers. */
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/mem.h"
#include "io/file.h"
#include "io/input.h"
#include "media/av/ts.h"

#define SYNC   0x47
#define PACKET 188 /* bytes from the sync byte on; 192 and 204 have more around them */
#define WINDOW (1 << 18)
#define PROBED 5 /* packets whose sync bytes tell the distance of packets */

struct ts_reader {
	const char *path;
	struct vfm_input in;
	const struct vfm_limit *limit;
	uint8_t *window; /* bytes [from, from + len) of the content */
	int64_t from, len;
	struct vfm_err *err;
	int rc; /* < 0: reading failed */
};

/* Returns `n` bytes at `pos`, or NULL after the end or if reading failed. */
static const uint8_t *ts_bytes(struct ts_reader *r, int64_t pos, int64_t n)
{
	int64_t size = (int64_t)r->in.size, len;

	if (r->rc < 0 || pos + n > size)
		return NULL;
	if (pos >= r->from && pos + n <= r->from + r->len)
		return r->window + (pos - r->from);
	len = size - pos < WINDOW ? size - pos : WINDOW;
	r->rc = vfm_limit_check(r->limit, r->path, r->err);
	if (r->rc == 0)
		r->rc = vfm_full_pread(r->in.fd, r->window, (size_t)len, r->in.at + (uint64_t)pos, r->path, r->err);
	if (r->rc < 0)
		return NULL;
	r->from = pos;
	r->len = len;
	return r->window;
}

static bool is_sync(struct ts_reader *r, int64_t pos)
{
	const uint8_t *b = ts_bytes(r, pos, 1);

	return b && *b == SYNC;
}

/* Returns the place of the first packet and the distance of packets, or -1: it is no transport stream. */
static int64_t find_packets(struct ts_reader *r, int *distance)
{
	static const int distances[] = {188, 192, 204};

	for (int64_t first = 0; first < 204; first++)
		for (size_t i = 0; i < sizeof(distances) / sizeof(distances[0]); i++) {
			int k = 0;

			while (k < PROBED && is_sync(r, first + (int64_t)k * distances[i]))
				k++;
			*distance = distances[i];
			if (k == PROBED)
				return first;
		}
	return -1;
}

/* Returns the next place from `pos` on where two packets follow each other, or the end of the file. */
static int64_t find_sync(struct ts_reader *r, int64_t pos, int distance)
{
	for (; r->rc >= 0 && pos + PACKET <= (int64_t)r->in.size; pos++)
		if (is_sync(r, pos) && (pos + distance >= (int64_t)r->in.size || is_sync(r, pos + distance)))
			return pos;
	return (int64_t)r->in.size;
}

/* Returns whether a packet of `pid` begins a PES packet whose start code is missing. */
static bool lacks_start_code(const uint8_t *p, int pid)
{
	int control = p[3] >> 4 & 3, at = control & 2 ? 5 + p[4] : 4;
	bool starts = p[1] & 0x40, has_error = p[1] & 0x80, scrambled = p[3] & 0xc0;

	if (((p[1] & 0x1f) << 8 | p[2]) != pid || !starts || has_error || scrambled || !(control & 1))
		return false;
	return at + 3 > PACKET || p[at] != 0 || p[at + 1] != 0 || p[at + 2] != 1;
}

static int64_t count_faults(struct ts_reader *r, int pid)
{
	int64_t size = (int64_t)r->in.size, pos, faults = 0;
	const uint8_t *packet;
	int distance;

	pos = find_packets(r, &distance);
	if (pos < 0)
		return 0;
	while ((packet = ts_bytes(r, pos, PACKET))) {
		if (packet[0] == SYNC) {
			faults += lacks_start_code(packet, pid);
			pos += distance;
			continue;
		}
		faults++;
		pos = find_sync(r, pos, distance);
	}
	return faults + (pos < size && is_sync(r, pos));
}

int vfm_ts_faults(const char *path, int pid, const struct vfm_limit *limit, int64_t *faults, struct vfm_err *err)
{
	struct ts_reader r = {.path = path, .limit = limit, .err = err};

	*faults = 0;
	TRY(vfm_input_open(&r.in, path, err));
	r.window = vfm_malloc(WINDOW);
	*faults = count_faults(&r, pid);
	free(r.window);
	close(r.in.fd);
	return r.rc;
}
