// Command controlplane is etcd, kube-apiserver, kube-controller-manager and kube-scheduler in one binary,
// for tests against the real thing. The first argument says which of them to be; the rest are its own flags.
//
// Each component is the exported command of the published module, unchanged; this file only chooses one.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

var components = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllermanager.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: controlplane etcd|kube-apiserver|kube-controller-manager|kube-scheduler [FLAG ...]")
		os.Exit(2)
	}
	name := os.Args[1]
	os.Args = append([]string{name}, os.Args[2:]...)
	if name == "etcd" {
		etcdmain.Main(os.Args)
		return
	}
	newCommand, known := components[name]
	if !known {
		fmt.Fprintf(os.Stderr, "controlplane: no component %q\n", name)
		os.Exit(2)
	}
	os.Exit(cli.Run(newCommand()))
}
