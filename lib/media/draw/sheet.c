/* sheet.c - see sheet.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "media/av/video_out.h"
#include "media/draw/image.h"
#include "media/draw/png.h"
#include "media/draw/sheet.h"

#define MAX_LINES 8
#define PAD       8
#define LINE      11
#define PAPER     0xF4F4F2
#define CARD      0xFFFFFF
#define INK       0x222222
#define DIM       0x666666
#define RED       0xC8321E
#define EMPTY     0x2B2B2B

struct sheet_cell {
	uint8_t *frames; /* [n, height, width, 3] */
	char *text;
	bool marked;
};

struct vfm_sheet {
	struct vfm_sheet_opts o;
	struct sheet_cell *cells;
	size_t cap;
	int64_t n;
};

struct vfm_sheet *vfm_sheet_new(const struct vfm_sheet_opts *opts)
{
	struct vfm_sheet *s = vfm_calloc(1, sizeof(*s));

	s->o = *opts;
	if (s->o.timeout_s <= 0)
		s->o.timeout_s = 600;
	if (!s->o.columns)
		s->o.columns = 3;
	if (!s->o.frames)
		s->o.frames = 3;
	if (!s->o.width)
		s->o.width = 160;
	if (!s->o.height)
		s->o.height = 120;
	return s;
}

void vfm_sheet_free(struct vfm_sheet *s)
{
	if (!s)
		return;
	for (int64_t i = 0; i < s->n; i++) {
		free(s->cells[i].frames);
		free(s->cells[i].text);
	}
	free(s->cells);
	free(s);
}

int64_t vfm_sheet_count(const struct vfm_sheet *s)
{
	return s->n;
}

/* Fits the last decoded frame into a box with dark borders. */
static int grab(
	const struct vfm_sheet *s, struct vfm_video *v, const struct vfm_frame *f, uint8_t *box, struct vfm_err *err)
{
	double scale = fmin((double)s->o.width / f->width, (double)s->o.height / f->height);
	int w = (int)fmax(1, lrint(f->width * scale)), h = (int)fmax(1, lrint(f->height * scale));
	struct vfm_image im = {.width = s->o.width, .height = s->o.height, .rgb = box};
	uint8_t *rgb;
	int rc;

	w = w > s->o.width ? s->o.width : w;
	h = h > s->o.height ? s->o.height : h;
	rgb = vfm_malloc((size_t)w * (size_t)h * 3);
	rc = vfm_video_rgb(v, w, h, VFM_FIT_STRETCH, rgb, err);
	vfm_image_fill(&im, 0, 0, im.width, im.height, EMPTY);
	if (rc == 0)
		vfm_image_blit(&im, (im.width - w) / 2, (im.height - h) / 2, rgb, w, h);
	free(rgb);
	return rc;
}

/* Frames at the middles of equal parts.  If the file has fewer frames than announced, the last one is repeated. */
static int grab_all(const struct vfm_sheet *s, struct vfm_video *v, const struct vfm_sheet_clip *clip, uint8_t *frames,
	struct vfm_err *err)
{
	size_t size = (size_t)s->o.width * (size_t)s->o.height * 3;
	int64_t claimed = vfm_video_info(v)->frames,
		n = clip->end >= 0 ? clip->end - clip->start : claimed - clip->start, at = 0;
	struct vfm_frame f = {0};
	int rc = 1, have = 0;

	if (n < 1)
		n = 1;
	if (clip->start > 0)
		TRY(vfm_video_seek(v, clip->start, clip->start_pts, err));
	for (int k = 0; k < s->o.frames; k++) {
		int64_t want = (int64_t)((k + 0.5) * (double)n / s->o.frames);

		while (at <= want && (rc = vfm_video_next(v, &f, err)) == 1)
			at++;
		if (rc < 0)
			return rc;
		if (rc == 0)
			break;
		TRY(grab(s, v, &f, frames + (size_t)k * size, err));
		have = k + 1;
		if (vfm_video_info(v)->image)
			break;
	}
	if (!have)
		return vfm_fail(err, VFM_EINPUT, "'%s': no frame can be decoded", clip->path);
	for (int k = have; k < s->o.frames; k++)
		memcpy(frames + (size_t)k * size, frames + (size_t)(have - 1) * size, size);
	return 0;
}

int vfm_sheet_add(struct vfm_sheet *s, const struct vfm_sheet_clip *clip, struct vfm_err *err)
{
	size_t size = (size_t)s->o.width * (size_t)s->o.height * 3 * (size_t)s->o.frames;
	struct vfm_video_opts video = s->o.video;
	uint8_t *frames;
	struct vfm_video *v;
	int rc;

	video.limit = vfm_limit_start(s->o.timeout_s);
	TRY(vfm_video_open(&v, clip->path, &video, err));
	frames = vfm_malloc(size);
	rc = grab_all(s, v, clip, frames, err);
	vfm_video_close(v);
	if (rc < 0) {
		free(frames);
		return rc;
	}
	vfm_grow(&s->cells, &s->cap, (size_t)s->n + 1, sizeof(s->cells[0]));
	s->cells[s->n++] = (struct sheet_cell){frames, clip->text ? vfm_strdup(clip->text) : NULL, clip->marked};
	return 0;
}

static int lines_in(const char *text)
{
	int n = text && *text ? 1 : 0;

	for (; text && *text; text++)
		n += *text == '\n' && text[1];
	return n > MAX_LINES ? MAX_LINES : n;
}

static void draw_lines(struct vfm_image *im, int x, int y, int width, const char *text)
{
	int n = lines_in(text), room = width / VFM_FONT_W;

	for (int i = 0; i < n; i++) {
		size_t len = strcspn(text, "\n");
		char *line = vfm_strfmt("%.*s", (int)(len > (size_t)room ? (size_t)room : len), text);

		vfm_image_text(im, x, y, 1, i ? DIM : INK, line);
		free(line);
		y += LINE;
		text += len + (text[len] == '\n');
	}
}

int vfm_sheet_write(struct vfm_sheet *s, const char *path, const char *title, struct vfm_err *err)
{
	int columns = s->n && s->n < s->o.columns ? (int)s->n : s->o.columns, lines = 0, rc;
	int64_t rows = (s->n + columns - 1) / columns;
	int cell_w = s->o.frames * (s->o.width + 2) - 2, cell_h, head = title ? 28 : 0;
	size_t size = (size_t)s->o.width * (size_t)s->o.height * 3;
	struct vfm_image im;

	for (int64_t i = 0; i < s->n; i++)
		lines = lines_in(s->cells[i].text) > lines ? lines_in(s->cells[i].text) : lines;
	cell_h = s->o.height + (lines ? lines * LINE + 6 : 0);
	if (s->n == 0)
		return vfm_fail(err, VFM_EINPUT, "no clips for the sheet '%s'", path);
	if (rows * (cell_h + 2 * PAD) + head + PAD > 32768)
		return vfm_fail(err, VFM_EUSAGE, "%lld clips make too tall a sheet; take fewer or more columns",
			(long long)s->n);
	TRY(vfm_image_init(
		&im, columns * (cell_w + 2 * PAD) + PAD, (int)rows * (cell_h + 2 * PAD) + head + PAD, PAPER, err));
	if (title)
		vfm_image_text(&im, PAD + PAD / 2, PAD + 2, 2, INK, title);
	for (int64_t i = 0; i < s->n; i++) {
		const struct sheet_cell *c = &s->cells[i];
		int x = PAD + PAD / 2 + (int)(i % columns) * (cell_w + 2 * PAD),
		    y = head + PAD + PAD / 2 + (int)(i / columns) * (cell_h + 2 * PAD);

		vfm_image_fill(&im, x - 4, y - 4, cell_w + 8, cell_h + 8, CARD);
		for (int k = 0; k < s->o.frames; k++)
			vfm_image_blit(&im, x + k * (s->o.width + 2), y, c->frames + (size_t)k * size, s->o.width,
				s->o.height);
		if (c->text)
			draw_lines(&im, x, y + s->o.height + 5, cell_w, c->text);
		for (int k = 0; k < 2 && c->marked; k++)
			vfm_image_frame(&im, x - 4 + k, y - 4 + k, cell_w + 8 - 2 * k, cell_h + 8 - 2 * k, RED);
	}
	rc = vfm_png_write(path, im.rgb, im.width, im.height, err);
	vfm_image_release(&im);
	return rc;
}
