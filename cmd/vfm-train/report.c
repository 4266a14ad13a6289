/* vfm-train --report - one page about runs. */
#include "report.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "io/file.h"
#include "train/run/run_report.h"

static int print_page(const struct vfm_buf *b, struct vfm_err *err)
{
	if (fwrite(b->data, 1, b->len, stdout) == b->len && !fflush(stdout))
		return 0;
	return vfm_fail_errno(err, errno == EPIPE ? VFM_EPIPE : VFM_EENV, "cannot write stdout");
}

int write_run_report(char *const *runs, int n, const char *path, struct vfm_err *err)
{
	char *dir = path ? vfm_dir_of(path) : vfm_strdup(".");
	struct vfm_buf page = {0};
	int rc;

	if (n < 1)
		rc = vfm_fail(err, VFM_EUSAGE, "--report: RUN is missing (see vfm-train -h)");
	else
		rc = vfm_run_report(&page, &(struct vfm_run_report_opts){.runs = runs, .n = n, .page_dir = dir}, err);
	if (rc == 0)
		rc = path ? vfm_write_file(path, page.data, page.len, err) : print_page(&page, err);
	vfm_buf_release(&page);
	free(dir);
	return rc;
}
