// driver.cu - the cases as one program for a GPU: `cases NAME` runs one of them, so that a tool can watch it alone;
// `cases --results NAME...` runs several and prints the numbers that each computes, one line per case.
//
//     cd tests/common/simulator/checked
//     nvcc -std=c++20 -lineinfo -arch=native -I../../../.. -Xcompiler=-rdynamic driver.cu kernels/*.cu -ldl -o cases
//     compute-sanitizer --tool racecheck ./cases shift_without_barrier
//
// Exit status: 0 the case ran, 1 it failed (the reason is on stderr), 2 there is no case of that name.
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "kernels/case.h"

using Case = const char* (*)(float* result);

static int run(const char* name, bool print) {
    const Case function = reinterpret_cast<Case>(dlsym(RTLD_DEFAULT, name));
    if (!function) {
        fprintf(stderr, "there is no case `%s`\n", name);
        return 2;
    }
    std::vector<float> result(RESULT_SIZE);
    const char* error = function(result.data());
    if (error) {
        fprintf(stderr, "%s: %s\n", name, error);
        return 1;
    }
    if (!print) return 0;
    printf("%s", name);
    for (float value : result) printf(" %.9g", value);
    printf("\n");
    return 0;
}

int main(int count, char** arguments) {
    const bool print = count > 1 && strcmp(arguments[1], "--results") == 0;
    if (count < 2 + print || (!print && count > 2)) {
        fprintf(stderr, "usage: %s NAME\n       %s --results NAME...\n", arguments[0], arguments[0]);
        return 2;
    }
    int worst = 0;
    for (int i = 1 + print; i < count; ++i) {
        const int status = run(arguments[i], print);
        if (status > worst) worst = status;
    }
    return worst;
}
