/* find.c - lists step folders, finds the newest complete one, and resolves what the user named. */
#include "ckpt/find.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/stats.h"
#include "ckpt/ckpt_impl.h"

#define DIFFUSERS_LORA "pytorch_lora_weights.safetensors"

int ckpt_open_code(int errnum)
{
	switch (errnum) {
	case ENOENT:
	case ENOTDIR:
	case EISDIR:
	case ELOOP:
	case ENAMETOOLONG:
		return VFM_EUSAGE;
	default:
		return VFM_EENV;
	}
}

char *vfm_ckpt_path(const char *dir, int64_t step)
{
	return vfm_strfmt("%s/step-%08lld", dir, (long long)step);
}

bool ckpt_step_of(const char *name, int64_t *step, bool *tmp)
{
	const char *p = name + 5;
	int64_t v = 0;
	int digits = 0;

	if (strncmp(name, "step-", 5) != 0)
		return false;
	for (; isdigit((unsigned char)*p) && digits < 18; p++, digits++)
		v = v * 10 + (*p - '0');
	*step = v;
	*tmp = !strcmp(p, ".tmp") || !strcmp(p, ".old.tmp");
	return digits >= 8 && (*tmp || !*p);
}

bool ckpt_has_file(const char *dir, const char *name)
{
	char *p = vfm_strfmt("%s/%s", dir, name);
	bool yes = access(p, F_OK) == 0;

	free(p);
	return yes;
}

bool ckpt_is_dir(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

int vfm_ckpt_steps(const char *dir, bool all, int64_t **steps, size_t *n, struct vfm_err *err)
{
	DIR *d = opendir(dir);
	struct dirent *de;
	size_t cap = 0;
	int64_t step;
	bool tmp;

	*steps = NULL;
	*n = 0;
	if (!d && (errno == ENOENT || errno == ENOTDIR))
		return 0;
	if (!d)
		return vfm_fail_errno(err, VFM_EENV, "cannot open directory '%s'", dir);
	while ((de = readdir(d)) != NULL) {
		char *p, *canon;

		if (!ckpt_step_of(de->d_name, &step, &tmp) || tmp)
			continue;
		p = vfm_strfmt("%s/%s", dir, de->d_name);
		canon = vfm_ckpt_path(dir, step); /* skips names such as step-000000001 */
		if (!strcmp(p, canon) && (ckpt_has_file(p, CKPT_MANIFEST) || (all && ckpt_is_dir(p)))) {
			vfm_grow(steps, &cap, *n + 1, sizeof(**steps));
			(*steps)[(*n)++] = step;
		}
		free(p);
		free(canon);
	}
	closedir(d);
	if (*n)
		vfm_sort_i64(*steps, *n);
	return 0;
}

int vfm_ckpt_latest(const char *dir, int64_t *step, struct vfm_err *err)
{
	int64_t *steps;
	size_t n;

	TRY(vfm_ckpt_steps(dir, false, &steps, &n, err));
	*step = n ? steps[n - 1] : -1;
	free(steps);
	return 0;
}

char *ckpt_bare_path(const char *path)
{
	char *bare = vfm_strdup(path);

	for (size_t n = strlen(bare); n > 1 && bare[n - 1] == '/'; n--)
		bare[n - 1] = 0;
	return bare;
}

int vfm_ckpt_resolve(const char *operand, char **path, struct vfm_err *err)
{
	char *sub = vfm_strfmt("%s/ckpt", operand), *bare = ckpt_bare_path(operand);
	int64_t step = -1;
	struct stat st;
	int rc = 0;

	*path = NULL;
	if (stat(operand, &st) != 0) {
		rc = vfm_fail_errno(err, ckpt_open_code(errno), "cannot open '%s'", operand);
	} else if (!S_ISDIR(st.st_mode) || ckpt_has_file(operand, CKPT_MANIFEST) || ckpt_plain_name(operand)) {
		*path = vfm_strdup(bare);
	} else {
		rc = vfm_ckpt_latest(sub, &step, err);
		if (!rc && step >= 0)
			*path = vfm_ckpt_path(sub, step);
		else if (!rc && (rc = vfm_ckpt_latest(bare, &step, err)) == 0 && step >= 0)
			*path = vfm_ckpt_path(bare, step);
		if (!rc && !*path && ckpt_has_file(operand, "model_index.json"))
			rc = vfm_fail(err, VFM_EUSAGE,
				"'%s' holds several models; give the folder of one, such as '%s/transformer'", operand,
				bare);
		else if (!rc && !*path &&
			(ckpt_has_file(operand, CKPT_PEFT_CONFIG) || ckpt_has_file(operand, DIFFUSERS_LORA)))
			rc = vfm_fail(err, VFM_EUSAGE,
				"'%s' holds LoRA adapters, not a model: vfm-ckpt merge and vfm-sample --lora take "
				"'%s%s%s'",
				operand, bare, ckpt_has_file(operand, CKPT_PEFT_CONFIG) ? "" : "/",
				ckpt_has_file(operand, CKPT_PEFT_CONFIG) ? "" : DIFFUSERS_LORA);
		else if (!rc && !*path)
			rc = vfm_fail(err, VFM_EUSAGE,
				"no complete checkpoint in '%s', and no .safetensors or .pth file", operand);
	}
	free(sub);
	free(bare);
	return rc;
}
