#include "train/run/run_samples.h"

#include <ctype.h>
#include <dirent.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "data/record/clip_reader.h"
#include "io/input.h"
#include "media/draw/html.h"

enum { SHOWN_STEPS = 6, SHOWN_SAMPLES = 4, MAX_PICTURE = 512 << 10, FRAME_W = 240, FRAME_H = 180, DECODE_S = 20 };

static const struct {
	const char *suffix, *type; /* type NULL: a video */
} sample_kinds[] = {{".png", "image/png"}, {".jpg", "image/jpeg"}, {".jpeg", "image/jpeg"}, {".mp4", NULL}};
enum { SAMPLE_KINDS = sizeof(sample_kinds) / sizeof(sample_kinds[0]) };

/* ---- links ---- */

/* Appends a path as a part of a URL (RFC 3986). */
static void add_url(struct vfm_buf *b, const char *path)
{
	for (const unsigned char *s = (const unsigned char *)path; *s; s++)
		vfm_buf_addf(b, isalnum(*s) || strchr("-._~/", *s) ? "%c" : "%%%02X", *s);
}

/* Appends the relative link from a folder to a file; both paths are real paths. */
static void add_relative_link(struct vfm_buf *b, const char *from, const char *file)
{
	size_t same = 0, i = 0, end = strlen(from); /* same: bytes of the folders that both paths begin with */

	for (; from[i] && from[i] == file[i]; i++)
		if (from[i] == '/')
			same = i + 1;
	if (!from[i] && file[i] == '/')
		same = i + 1;
	for (const char *s = from + (same < end ? same : end); *s;) {
		vfm_buf_adds(b, "../");
		s += strcspn(s, "/");
		s += *s == '/';
	}
	add_url(b, file + same);
}

/* ---- figures ---- */

static int kind_of_sample(const char *name)
{
	size_t n = strlen(name);

	for (int i = 0; i < SAMPLE_KINDS; i++) {
		size_t m = strlen(sample_kinds[i].suffix);

		if (n > m && !strcmp(name + n - m, sample_kinds[i].suffix))
			return i;
	}
	return -1;
}

/* Appends the middle frame of a file, scaled down.  Returns whether it could be decoded. */
static bool add_sample_frame(struct vfm_buf *b, const char *path, const char *alt)
{
	json_t *rec = json_pack("{s:s}", "src", path);
	struct vfm_thumbnails t = {0};
	int rc = rec ? vfm_thumbnails(&t, rec, 1, FRAME_W, FRAME_H, DECODE_S, NULL) : -1;

	if (rc == 0)
		rc = vfm_html_picture(b, t.rgb, t.width, t.height, alt, NULL);
	free(t.rgb);
	json_decref(rec);
	return rc >= 0;
}

static bool add_sample_picture(struct vfm_buf *b, const char *path, const char *alt, const char *type)
{
	char *data = NULL;
	size_t len = 0;

	if (!type || vfm_read_regular(path, MAX_PICTURE, &data, &len, NULL) < 0)
		return add_sample_frame(b, path, alt);
	vfm_html_image(b, type, data, len, alt);
	free(data);
	return true;
}

/* The sample `name` of an evaluation, if its folder has it.  Returns whether it has. */
static bool add_sample_figure(
	struct vfm_buf *b, const char *folder, const char *name, const char *page_dir, size_t *room)
{
	char *path = vfm_strfmt("%s/%s", folder, name);
	const char *type = sample_kinds[kind_of_sample(name)].type;
	long long step = atoll(strrchr(folder, '/') + sizeof("/step-") - 1);
	size_t before = b->len;
	bool exists = access(path, R_OK) == 0;

	if (exists) {
		vfm_buf_adds(b, "<figure>");
		if (*room == 0 || !add_sample_picture(b, path, name, type))
			vfm_buf_adds(b, "<p class='none dim'>no picture</p>");
		*room -= b->len - before < *room ? b->len - before : *room;
		vfm_html_addf(b, "<figcaption>step %lld", step);
		if (!type) {
			vfm_buf_adds(b, " <a href='");
			add_relative_link(b, page_dir, path);
			vfm_buf_adds(b, "'>video</a>");
		}
		vfm_buf_adds(b, "</figcaption></figure>\n");
	}
	free(path);
	return exists;
}

static int is_sample(const struct dirent *e)
{
	return kind_of_sample(e->d_name) >= 0;
}

static int is_step_folder(const struct dirent *e)
{
	return !strncmp(e->d_name, "step-", 5) && isdigit((unsigned char)e->d_name[5]);
}

static void free_entries(struct dirent **list, int n)
{
	for (int i = 0; i < n; i++)
		free(list[i]);
	if (n >= 0)
		free(list);
}

/* A row with a sample of each evaluation.  Returns the number of figures. */
static int add_sample_row(
	struct vfm_buf *b, char **folders, int n, const char *name, const char *page_dir, size_t *room)
{
	int figures = 0;

	vfm_html_addf(b,
		"<p class='dim small'>%s</p>\n<div class=shots "
		"style='grid-template-columns:repeat(%d,minmax(0,1fr))'>\n",
		name, SHOWN_STEPS);
	for (int i = 0; i < n; i++)
		figures += add_sample_figure(b, folders[i], name, page_dir, room);
	vfm_buf_adds(b, "</div>\n");
	return figures;
}

/* Rows of the first samples of the newest evaluation. */
static int add_sample_rows(struct vfm_buf *b, char **folders, int n, const char *page_dir, size_t *room)
{
	struct dirent **list = NULL;
	int found = n ? scandir(folders[n - 1], &list, is_sample, alphasort) : -1, figures = 0;

	for (int i = 0; i < found && i < SHOWN_SAMPLES; i++)
		figures += add_sample_row(b, folders, n, list[i]->d_name, page_dir, room);
	free_entries(list, found);
	return figures;
}

int vfm_run_samples_html(struct vfm_buf *b, const char *run_dir, const char *page_dir, size_t *room)
{
	char *given = vfm_strfmt("%s/samples", run_dir), *dir = realpath(given, NULL), *page = realpath(page_dir, NULL);
	char *folders[SHOWN_STEPS];
	struct dirent **list = NULL;
	int n = dir && page ? scandir(dir, &list, is_step_folder, alphasort) : -1, figures;
	int shown = n < 0 ? 0 : n < SHOWN_STEPS ? n : SHOWN_STEPS;

	for (int i = 0; i < shown; i++) {
		int at = shown > 1 ? (int)((int64_t)i * (n - 1) / (shown - 1)) : 0;

		folders[i] = vfm_strfmt("%s/%s", dir, list[at]->d_name);
	}
	figures = add_sample_rows(b, folders, shown, page, room);
	for (int i = 0; i < shown; i++)
		free(folders[i]);
	free_entries(list, n);
	free(given);
	free(dir);
	free(page);
	return figures;
}
