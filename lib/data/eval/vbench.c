#include "data/eval/vbench.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "data/record/provenance.h"
#include "data/record/record.h"
#include "io/file.h"
#include "io/input.h"
#include "io/json.h"

#define SUITE_MAX ((size_t)64 << 20) /* bytes of VBench_full_info.json, which has 200 KB */
#define STEM_MAX  240                /* bytes of a prompt in a name; the longest of the suite has 210 */

/* The dimensions that VBench documents for videos of one's own. */
static const char *const custom_dimensions[] = {"subject_consistency", "background_consistency", "motion_smoothness",
	"dynamic_degree", "aesthetic_quality", "imaging_quality"};

struct vbench_state {
	const struct vfm_vbench_opts *o;
	struct vfm_vbench *v;
	char *videos;      /* absolute path of DIR/videos */
	char extension[8]; /* of all videos; "": none yet */
	json_t *info;      /* the entries of full_info.json */
	json_t *lists;     /* prompt -> its video_list, which its entries share */
	json_t *stems;     /* stem of a name -> number of its videos */
	json_t *names;     /* prompts.json */
};

/* ---- the suite ---- */

static int add_suite_prompt(struct vbench_state *s, json_t *entry, size_t i, struct vfm_err *err)
{
	const char *prompt = json_string_value(json_object_get(entry, "prompt_en"));
	json_t *list;

	if (!prompt || !json_is_array(json_object_get(entry, "dimension")))
		return vfm_fail(err, VFM_EUSAGE, "%s: [%zu]: expected an object with 'prompt_en' and 'dimension'",
			s->o->suite, i);
	list = json_object_get(s->lists, prompt);
	if (!list) {
		list = json_array();
		json_object_set_new(s->lists, prompt, list);
	}
	json_object_set(entry, "video_list", list);
	return 0;
}

static int read_suite(struct vbench_state *s, struct vfm_err *err)
{
	json_t *entry;
	size_t i;

	s->info = s->o->suite ? vfm_json_load(s->o->suite, SUITE_MAX, err) : json_array();
	if (!s->info)
		return err->code;
	if (!json_is_array(s->info))
		return vfm_fail(
			err, VFM_EUSAGE, "%s: expected a list of prompts, as in VBench_full_info.json", s->o->suite);
	json_array_foreach(s->info, i, entry) TRY(add_suite_prompt(s, entry, i, err));
	s->v->suite = (int64_t)json_object_size(s->lists);
	return 0;
}

static json_t *new_prompt(struct vbench_state *s, const char *prompt)
{
	json_t *dimensions = json_array(), *list = json_array();

	for (size_t i = 0; i < sizeof(custom_dimensions) / sizeof(*custom_dimensions); i++)
		json_array_append_new(dimensions, json_string(custom_dimensions[i]));
	json_array_append_new(
		s->info, json_pack("{s:s,s:o,s:O}", "prompt_en", prompt, "dimension", dimensions, "video_list", list));
	json_object_set_new(s->lists, prompt, list);
	return list;
}

/* ---- names ---- */

/* Returns the prompt as part of a file name: cut to STEM_MAX bytes of whole characters; '/' and control characters
 * become '_'.  The caller frees it. */
static char *stem_of(const char *prompt)
{
	size_t n = strlen(prompt);
	char *stem;

	if (n > STEM_MAX)
		for (n = STEM_MAX; n > 0 && ((unsigned char)prompt[n] & 0xc0) == 0x80;)
			n--;
	stem = vfm_strfmt("%.*s", (int)n, prompt);
	for (char *c = stem; *c; c++)
		if (*c == '/' || (unsigned char)*c < ' ' || *c == 0x7f)
			*c = '_';
	return stem;
}

/* VBench takes the extension of all videos from one of them. */
static int check_extension(struct vbench_state *s, const char *src, struct vfm_err *err)
{
	const char *dot = strrchr(src, '.');

	if (!dot || (strcmp(dot, ".mp4") != 0 && strcmp(dot, ".gif") != 0))
		return vfm_fail(err, VFM_EUSAGE, "src: '%s': VBench reads .mp4 and .gif", src);
	if (!s->extension[0])
		memcpy(s->extension, dot, 5);
	if (strcmp(dot, s->extension) != 0)
		return vfm_fail(err, VFM_EUSAGE, "src: '%s': videos before are %s; VBench reads one kind in a folder",
			src, s->extension);
	return 0;
}

/* ---- files ---- */

static int copy_video_bytes(int from, const char *src, FILE *to, const char *dst, struct vfm_err *err)
{
	char *buf = vfm_malloc(1 << 20);
	ssize_t n;
	int rc = 0;

	while ((n = read(from, buf, 1 << 20)) > 0)
		if (fwrite(buf, 1, (size_t)n, to) != (size_t)n) {
			rc = vfm_fail_errno(err, VFM_EENV, "cannot write '%s'", dst);
			break;
		}
	if (n < 0)
		rc = vfm_fail_errno(err, VFM_EINPUT, "cannot read '%s'", src);
	free(buf);
	return rc;
}

static int copy_video(const char *src, const char *dst, struct vfm_err *err)
{
	struct vfm_atomic a;
	int fd = vfm_open_regular(src, NULL, err), rc;

	TRY(fd);
	rc = vfm_atomic_open(&a, dst, err);
	if (rc == 0) {
		rc = copy_video_bytes(fd, src, a.f, dst, err);
		if (rc == 0)
			rc = vfm_atomic_commit(&a, err);
		else
			vfm_atomic_abort(&a);
	}
	close(fd);
	return rc;
}

static int link_video(const char *src, const char *dst, struct vfm_err *err)
{
	char *target = realpath(src, NULL);
	struct stat st;
	int rc = 0;

	if (!target || stat(target, &st) != 0)
		rc = vfm_fail_errno(err, VFM_EINPUT, "cannot open '%s'", src);
	else if (!S_ISREG(st.st_mode))
		rc = vfm_fail(err, VFM_EINPUT, "'%s' is not a regular file", src);
	else if (symlink(target, dst) != 0)
		rc = vfm_fail_errno(err, VFM_EENV, "cannot create the link '%s'", dst);
	free(target);
	return rc;
}

static int add_video(struct vbench_state *s, const char *prompt, const char *src, struct vfm_err *err)
{
	json_t *list = json_object_get(s->lists, prompt);
	char *stem = stem_of(prompt), *name, *path;
	json_int_t index = json_integer_value(json_object_get(s->stems, stem));
	int rc;

	name = vfm_strfmt("%s-%lld%s", stem, (long long)index, s->extension);
	path = vfm_strfmt("%s/%s", s->videos, name);
	rc = (s->o->copy ? copy_video : link_video)(src, path, err);
	if (rc == 0) {
		json_object_set_new(s->stems, stem, json_integer(index + 1));
		json_array_append_new(list ? list : new_prompt(s, prompt), json_string(path));
		json_object_set_new(s->names, name, json_string(prompt));
		s->v->renamed += strcmp(stem, prompt) != 0;
		s->v->videos++;
	}
	free(stem);
	free(name);
	free(path);
	return rc;
}

/* ---- records ---- */

static int lay_out_record(struct vbench_state *s, const json_t *rec, struct vfm_err *err)
{
	const char *prompt = vfm_rec_str(rec, "caption", NULL), *src = vfm_rec_str(rec, "src", NULL);

	if (vfm_provenance_is_header(rec))
		return 0;
	if (vfm_rec_is_out(rec)) {
		s->v->left_out++;
		return 0;
	}
	if (!prompt || !src)
		return vfm_fail(err, VFM_EUSAGE, "%s: missing (expected a string)", prompt ? "src" : "caption");
	if (s->o->suite && !json_object_get(s->lists, prompt))
		return vfm_fail(err, VFM_EUSAGE, "caption: '%s' is no prompt of '%s'", prompt, s->o->suite);
	TRY(check_extension(s, src, err));
	return add_video(s, prompt, src, err);
}

static int lay_out_records(struct vbench_state *s, const char *file, struct vfm_err *err)
{
	struct vfm_jsonl in = {0};
	json_t *rec;
	int rc;

	TRY(vfm_jsonl_open(&in, file, err));
	while ((rc = vfm_jsonl_next(&in, &rec, err)) == 1) {
		rc = lay_out_record(s, rec, err);
		json_decref(rec);
		if (rc < 0) {
			vfm_err_context(err, "%s:%lld", in.name, (long long)in.line);
			break;
		}
	}
	vfm_jsonl_close(&in);
	return rc;
}

/* ---- the layout ---- */

static int is_empty_folder(const char *path, struct vfm_err *err)
{
	DIR *d = opendir(path);
	struct dirent *e;
	int rc = 0;

	if (!d)
		return vfm_fail_errno(err, VFM_EENV, "cannot read '%s'", path);
	while (rc == 0 && (e = readdir(d)))
		if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
			rc = vfm_fail(
				err, VFM_EUSAGE, "'%s' holds '%s' already: VBench would read it, too", path, e->d_name);
	closedir(d);
	return rc;
}

static int make_videos_folder(struct vbench_state *s, struct vfm_err *err)
{
	char *path = vfm_strfmt("%s/videos", s->o->dir);
	int rc = vfm_mkdir_p(path, err);

	if (rc >= 0)
		rc = is_empty_folder(path, err);
	s->videos = rc < 0 ? NULL : realpath(path, NULL);
	if (rc >= 0 && !s->videos)
		rc = vfm_fail_errno(err, VFM_EENV, "cannot resolve '%s'", path);
	free(path);
	return rc;
}

static int write_vbench_json(const char *dir, const char *name, const json_t *v, struct vfm_err *err)
{
	char *path = vfm_strfmt("%s/%s", dir, name);
	struct vfm_buf b = {0};
	int rc;

	vfm_json_text(&b, v, 4);
	vfm_buf_add(&b, "\n", 1);
	rc = vfm_write_file(path, b.data, b.len, err);
	vfm_buf_release(&b);
	free(path);
	return rc;
}

/* After a failure: removes the videos of this call, so that the next one finds the folder empty. */
static void remove_videos(struct vbench_state *s)
{
	const char *name;
	json_t *prompt;

	json_object_foreach(s->names, name, prompt)
	{
		char *path = vfm_strfmt("%s/%s", s->videos, name);

		unlink(path);
		free(path);
	}
}

static void count_videos(struct vbench_state *s)
{
	const char *prompt;
	json_t *list;

	json_object_foreach(s->lists, prompt, list)
	{
		int64_t n = (int64_t)json_array_size(list);

		s->v->incomplete += s->o->suite && n < VFM_VBENCH_VIDEOS;
		if (n == 0)
			continue;
		s->v->prompts++;
		s->v->most = n > s->v->most ? n : s->v->most;
		s->v->fewest = s->v->fewest == 0 || n < s->v->fewest ? n : s->v->fewest;
	}
}

int vfm_vbench_write(struct vfm_vbench *v, const struct vfm_vbench_opts *o, char **files, int n, struct vfm_err *err)
{
	struct vbench_state s = {
		.o = o, .v = v, .lists = json_object(), .stems = json_object(), .names = json_object()};
	int rc;

	*v = (struct vfm_vbench){0};
	TRY_OUT(read_suite(&s, err));
	TRY_OUT(make_videos_folder(&s, err));
	for (int i = 0; i < n; i++)
		TRY_OUT(lay_out_records(&s, files[i], err));
	if (v->videos == 0)
		TRY_OUT(vfm_fail(err, VFM_EUSAGE, "no record has a video"));
	TRY_OUT(write_vbench_json(o->dir, "full_info.json", s.info, err));
	TRY_OUT(write_vbench_json(o->dir, "prompts.json", s.names, err));
	count_videos(&s);
out:
	if (rc < 0 && s.videos)
		remove_videos(&s);
	free(s.videos);
	json_decref(s.info);
	json_decref(s.lists);
	json_decref(s.stems);
	json_decref(s.names);
	return rc;
}
