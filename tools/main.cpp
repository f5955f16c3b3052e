#include <cstdio>
int main() { std::puts("weft"); }
