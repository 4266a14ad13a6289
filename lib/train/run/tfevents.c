/* tfevents.c - encodes Event messages by hand, and frames them with masked CRCs. */
#include "train/run/tfevents.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "io/hash.h"
#include "io/input.h"

/* ---- the subset of protocol buffers that an Event needs ---- */

static void put_varint(struct vfm_buf *b, uint64_t x)
{
	do {
		uint8_t byte = (uint8_t)(x & 0x7f) | (x > 0x7f ? 0x80 : 0);

		vfm_buf_add(b, &byte, 1);
		x >>= 7;
	} while (x);
}

enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

static void put_tag(struct vfm_buf *b, int field, int wire)
{
	put_varint(b, (uint64_t)(field << 3 | wire));
}

static void put_bytes(struct vfm_buf *b, int field, const void *data, size_t len)
{
	put_tag(b, field, WIRE_BYTES);
	put_varint(b, len);
	vfm_buf_add(b, data, len);
}

/* Event: 1 wall_time, 2 step */
static void put_head(struct vfm_buf *b, int64_t step)
{
	double now = vfm_wall_time();

	put_tag(b, 1, WIRE_64);
	vfm_buf_add(b, &now, 8);
	put_tag(b, 2, WIRE_VARINT);
	put_varint(b, (uint64_t)step);
}

static int put_record(struct vfm_tfevents *e, const struct vfm_buf *b, struct vfm_err *err)
{
	uint64_t len = b->len;
	uint32_t crc[2] = {vfm_crc32c(0, &len, 8), vfm_crc32c(0, b->data, b->len)};

	for (int i = 0; i < 2; i++)
		crc[i] = ((crc[i] >> 15) | (crc[i] << 17)) + 0xa282ead8u;
	if (fwrite(&len, 8, 1, e->f) != 1 || fwrite(&crc[0], 4, 1, e->f) != 1 ||
		fwrite(b->data, b->len, 1, e->f) != 1 || fwrite(&crc[1], 4, 1, e->f) != 1)
		return vfm_fail_errno(err, VFM_EENV, "cannot write '%s'", e->path);
	return 0;
}

int vfm_tfevents_open(struct vfm_tfevents *e, const char *dir, int64_t first_step, struct vfm_err *err)
{
	static const uint8_t start[] = {1 << 3 | WIRE_VARINT, 1}; /* SessionLog: 1 status = START */
	struct vfm_buf b = {0};
	char host[64] = "localhost";
	int rc;

	gethostname(host, sizeof(host) - 1);
	e->path = vfm_strfmt(
		"%s/" VFM_TFEVENTS_PREFIX "%010lld.%s.%d", dir, (long long)vfm_wall_time(), host, (int)getpid());
	e->f = fopen(e->path, "wb");
	if (!e->f) {
		rc = vfm_fail_errno(err, VFM_EENV, "cannot create '%s'", e->path);
		vfm_tfevents_close(e);
		return rc;
	}
	put_head(&b, 0);
	put_bytes(&b, 3, "brain.Event:2", 13);
	rc = put_record(e, &b, err);
	if (rc == 0) {
		vfm_buf_clear(&b);
		put_head(&b, first_step);
		put_bytes(&b, 7, start, sizeof(start));
		rc = put_record(e, &b, err);
	}
	vfm_buf_release(&b);
	return rc;
}

/* Writes an event of one value, with its tag: Event: 5 summary; Summary: 1 value. */
static int put_summary(struct vfm_tfevents *e, int64_t step, const struct vfm_buf *value, struct vfm_err *err)
{
	struct vfm_buf event = {0}, summary = {0};
	int rc;

	put_bytes(&summary, 1, value->data, value->len);
	put_head(&event, step);
	put_bytes(&event, 5, summary.data, summary.len);
	rc = put_record(e, &event, err);
	vfm_buf_release(&summary);
	vfm_buf_release(&event);
	return rc;
}

/* Value: 1 tag, 2 simple_value */
int vfm_tfevents_scalar(struct vfm_tfevents *e, int64_t step, const char *tag, double value, struct vfm_err *err)
{
	struct vfm_buf one = {0};
	float v = (float)value;
	int rc;

	put_bytes(&one, 1, tag, strlen(tag));
	put_tag(&one, 2, WIRE_32);
	vfm_buf_add(&one, &v, 4);
	rc = put_summary(e, step, &one, err);
	vfm_buf_release(&one);
	return rc;
}

/* Value: 1 tag, 4 image; Image: 1 height, 2 width, 3 colorspace (3: RGB), 4 encoded_image_string */
int vfm_tfevents_image(struct vfm_tfevents *e, int64_t step, const char *tag, const struct vfm_buf *png, int width,
	int height, struct vfm_err *err)
{
	const int fields[] = {height, width, 3};
	struct vfm_buf one = {0}, image = {0};
	int rc;

	for (int i = 0; i < 3; i++) {
		put_tag(&image, i + 1, WIRE_VARINT);
		put_varint(&image, (uint64_t)fields[i]);
	}
	put_bytes(&image, 4, png->data, png->len);
	put_bytes(&one, 1, tag, strlen(tag));
	put_bytes(&one, 4, image.data, image.len);
	rc = put_summary(e, step, &one, err);
	vfm_buf_release(&image);
	vfm_buf_release(&one);
	return rc;
}

int vfm_tfevents_flush(struct vfm_tfevents *e, struct vfm_err *err)
{
	return fflush(e->f) ? vfm_fail_errno(err, VFM_EENV, "cannot write '%s'", e->path) : 0;
}

/* The second record of a file is what vfm_tfevents_open wrote: time, step and START, in this order. */
int vfm_tfevents_start(const char *path, double *time, int64_t *first_step, struct vfm_err *err)
{
	uint8_t head[256], *p = head, *end;
	uint64_t len = 0, step = 0;
	int fd = vfm_open_regular(path, NULL, err), shift = 0;
	ssize_t n;

	if (fd < 0)
		return fd;
	n = read(fd, head, sizeof(head));
	close(fd);
	end = head + (n > 0 ? n : 0);
	if (end - p >= 8)
		memcpy(&len, p, 8);
	if (len == 0 || len > 64 || end - p < 12 + (ssize_t)len + 4 + 12 + 10)
		return vfm_fail(err, VFM_EINPUT, "'%s' has no start", path);
	p += 12 + len + 4 + 12;
	if (p[0] != (1 << 3 | WIRE_64) || p[9] != (2 << 3 | WIRE_VARINT))
		return vfm_fail(err, VFM_EINPUT, "'%s' has no start", path);
	memcpy(time, p + 1, 8);
	for (p += 10; p < end && shift < 63; shift += 7) {
		step |= (uint64_t)(*p & 0x7f) << shift;
		if (!(*p++ & 0x80))
			break;
	}
	*first_step = (int64_t)step;
	return 0;
}

void vfm_tfevents_close(struct vfm_tfevents *e)
{
	if (e->f)
		fclose(e->f);
	free(e->path);
	*e = (struct vfm_tfevents){0};
}
