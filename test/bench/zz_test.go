package main
import ("testing";"context";"os";"github.com/truefoundry/elasti-apiserver/test/e2e/cluster")
func TestZZ(t *testing.T){ c,err:=cluster.Connect(context.Background()); if err!=nil{t.Fatal(err)}; b:=&bench{Cluster:c,report:newReport()}; if err:=b.empty(context.Background(), os.Getenv("NS")); err!=nil{t.Fatal(err)}}
